"""Images that are always there: the programs of this machine, without anything else of it.

They need no registry and no disk. The names under which the agent-sandbox project publishes its Python runtime mean the
same here, so that published templates work as they are.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from sandpool.node.images.reference import Reference
from sandpool.node.pods.parts import Image
from sandpool.node.runtimes.runtime import HostToolchain

HOST: Final = "sandpool.local"
PYTHON: Final = f"{HOST}/python"

_PATH: Final = "/usr/local/bin:/usr/bin:/bin"


def find(reference: Reference) -> Image | None:
    """The built-in image of this name, whatever its tag."""
    return _python() if (reference.host, reference.path) == (HOST, "python") else None


def _python() -> Image:
    prefix = Path(sys.base_prefix)
    is_elsewhere = not prefix.is_relative_to("/usr")
    return Image(
        id=f"{PYTHON}@{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}",
        root=HostToolchain((prefix,) if is_elsewhere else ()),
        env={"PATH": f"{prefix}/bin:{_PATH}" if is_elsewhere else _PATH, "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1"},
        command=("sleep", "infinity"),
        working_dir="/workspace",
        user="1000",
    )
