"""Images to import, made of next to nothing."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A file system."""
    root = tmp_path / "tree"
    (root / "etc").mkdir(parents=True)
    (root / "etc/release").write_text("tiny 1.0\n")
    (root / "link").symlink_to("/etc/release")
    return root


@pytest.fixture
def tar(tree: Path) -> Path:
    path = tree.with_name("tree.tar")
    with tarfile.open(path, "w") as archive:
        for child in tree.iterdir():
            archive.add(child, arcname=child.name)
    return path


@pytest.fixture
def layout(tree: Path) -> Path:
    """An OCI layout of two layers, the second of which removes a file of the first."""
    if shutil.which("umoci") is None:
        pytest.skip("umoci is not installed")
    path = tree.with_name("layout")

    def umoci(*arguments: str) -> None:
        subprocess.run(["umoci", *arguments], check=True, capture_output=True)

    umoci("init", "--layout", str(path))
    umoci("new", "--image", f"{path}:v1")
    umoci("insert", "--image", f"{path}:v1", str(tree / "etc"), "/etc")
    umoci("insert", "--image", f"{path}:v1", "--whiteout", "/etc/release")
    umoci("insert", "--image", f"{path}:v1", str(tree / "etc/release"), "/etc/version")
    umoci(
        "config", "--image", f"{path}:v1", "--config.entrypoint", "/bin/serve", "--config.env", "A=b",
        "--config.workingdir", "/etc", "--config.user", "7:8",
    )  # fmt: skip
    return path
