"""Images made of a few programs of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path


def copy_programs(root: Path, *programs: str) -> None:
    """Copy programs and their libraries into an image: programs into /bin, libraries where the loader expects them."""
    (root / "bin").mkdir(parents=True, exist_ok=True)
    for program in programs:
        shutil.copy2(program, root / "bin")
        needed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        for word in needed.split():
            target = root / word.lstrip("/")
            if word.startswith("/") and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(os.path.realpath(word), target)
