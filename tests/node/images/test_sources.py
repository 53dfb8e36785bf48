from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from sandpool.node.images import sources
from sandpool.node.images.config import ImageConfig
from sandpool.node.images.sources import SourceFailure, unpack


@pytest.fixture
def target(tmp_path: Path) -> Path:
    directory = tmp_path / "target"
    directory.mkdir()
    return directory


def content(directory: Path) -> dict[str, str]:
    root = directory / "rootfs"
    files = (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    return {str(path.relative_to(root)): path.read_text() for path in files}


def test_directory_is_imported(tree: Path, target: Path) -> None:
    assert unpack(str(tree), target).config == ImageConfig()
    assert content(target) == {"etc/release": "tiny 1.0\n"}
    assert (target / "rootfs/link").readlink() == Path("/etc/release")
    (target / "rootfs/etc/release").write_text("changed")
    assert (tree / "etc/release").read_text() == "tiny 1.0\n", "it is a copy"


def test_tar_of_a_file_system_is_imported(tar: Path, target: Path) -> None:
    first = unpack(str(tar), target)
    assert first.id.startswith("sha256:")
    assert content(target) == {"etc/release": "tiny 1.0\n"}


def test_oci_layout_is_imported(layout: Path, target: Path) -> None:
    unpacked = unpack(str(layout), target)
    assert content(target) == {"etc/version": "tiny 1.0\n"}, "what a layer removes is gone"
    assert unpacked.config.entrypoint == ("/bin/serve",)
    assert unpacked.config.env["A"] == "b"
    assert (unpacked.config.working_dir, unpacked.config.user) == ("/etc", "7:8")
    assert [path.name for path in target.iterdir()] == ["rootfs"]


@pytest.mark.parametrize("kind", ["oci-archive", "docker-archive"])
def test_image_archive_is_imported(kind: str, layout: Path, target: Path) -> None:
    if shutil.which("skopeo") is None:
        pytest.skip("skopeo is not installed")
    archive = layout.with_name("image.tar")
    command = ["skopeo", "--insecure-policy", "copy", f"oci:{layout}:v1", f"{kind}:{archive}"]
    subprocess.run(command, check=True, capture_output=True)
    assert unpack(str(archive), target).config.entrypoint == ("/bin/serve",)
    assert content(target) == {"etc/version": "tiny 1.0\n"}
    assert [path.name for path in target.iterdir()] == ["rootfs"]


def test_missing_source_is_reported(tmp_path: Path, target: Path) -> None:
    with pytest.raises(SourceFailure, match="nowhere: no such file or directory"):
        unpack(str(tmp_path / "nowhere"), target)


def test_source_that_is_no_image_is_reported(tmp_path: Path, target: Path) -> None:
    (tmp_path / "text").write_text("hello")
    with pytest.raises(SourceFailure, match="is no image: it is neither a directory, a tar of a file system, nor"):
        unpack(str(tmp_path / "text"), target)


def test_missing_tool_is_named(layout: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(SourceFailure, match="umoci is not installed; as root run: apt-get install umoci"):
        unpack(str(layout), target)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ('time="2026-11-16T19:45:42Z" level=fatal msg="reading \\"x\\": no"\n', 'reading "x": no'),
        ("first\nsecond\n", "second"),
        ('time="2026" level=fatal msg="a\\xffb"', 'time="2026" level=fatal msg="a\\xffb"'),
        ("", "failed"),
    ],
)
def test_error_of_a_tool_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, told: str) -> None:
    (tmp_path / "said").write_text(said)
    (tmp_path / "skopeo").write_text(f"#!/bin/sh\ncat {tmp_path}/said >&2\nexit 1\n")
    (tmp_path / "skopeo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(SourceFailure) as failure:
        unpack("docker://example.invalid/x", tmp_path)
    assert str(failure.value) == f"skopeo: {told}"


def test_unreachable_registry_is_reported(target: Path) -> None:
    if shutil.which("skopeo") is None:
        pytest.skip("skopeo is not installed")
    with pytest.raises(SourceFailure, match="skopeo: "):
        unpack("docker://127.0.0.1:1/missing/image:latest", target)


@pytest.fixture
def endless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A skopeo that downloads until it is ended. Returns the file that says so."""
    tools, told = tmp_path / "tools", tmp_path / "told"
    tools.mkdir()
    tool = tools / "skopeo"
    tool.write_text(f"#!/bin/sh\necho $$ >{told}\nexec sleep 1000\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=":")
    return told


def has_ended(told: Path) -> bool:
    return not Path("/proc", told.read_text().strip()).exists()


def test_image_that_fills_the_disk_is_given_up(endless: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may create a pod decides which image it has: the sizes in its manifest are not trusted."""
    real = os.statvfs(target)
    blocks = list(real)
    full = list(real)
    blocks[2:5] = 1 << 30, 1 << 29, 1 << 29
    full[2:5] = 1 << 30, 1000, 1000

    def statvfs(path: Path) -> os.statvfs_result:
        return os.statvfs_result(full if endless.exists() and endless.read_text() else blocks)

    monkeypatch.setattr(os, "statvfs", statvfs)
    with pytest.raises(SourceFailure, match="MiB free, which are kept for other purposes"):
        unpack("docker://example.com/bomb", target)
    assert has_ended(endless)


def test_registry_that_does_not_answer_is_given_up(
    endless: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "LONGEST", 0.0)
    monkeypatch.setattr(sources, "_check_space", lambda _: None)
    with pytest.raises(SourceFailure, match="skopeo: not done within 0 s"):
        unpack("docker://example.com/tarpit", target)
    assert not endless.exists() or not endless.read_text() or has_ended(endless)
