"""Roots on disk: of a container's own size, outside of its memory, and gone with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandpool.node.cgroups.limits import Limits
from sandpool.node.launcher.loop_device import mount_copy
from sandpool.node.runtimes.runtime import HostToolchain, ImageLayers, RuntimeFailure, Scratch
from sandpool.node.volumes import disk
from tests.support.isolation import Rig
from tests.support.tiny_image import copy_programs

pytestmark = pytest.mark.isolation

SIZE = 64 << 20


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    directory = tmp_path / "empty-disks"
    directory.mkdir()
    disk.make_image(directory / "image", SIZE)
    return Scratch(SIZE, disk=directory / "image")


@pytest.fixture
def image(tmp_path: Path) -> ImageLayers:
    (tmp_path / "files/tmp").mkdir(parents=True)
    (tmp_path / "files/tmp").chmod(0o1777)
    copy_programs(tmp_path / "files", "/bin/sh", "/usr/bin/head", "/bin/cat", "/bin/ls", "/bin/sleep")
    return ImageLayers((tmp_path / "files",))


def loop_devices(scratch: Scratch) -> list[str]:
    """Loop devices with a copy of this image. Other tests have devices of their own."""
    assert scratch.disk is not None
    files = [file.read_text() for file in Path("/sys/block").glob("loop*/loop/backing_file")]
    return [file for file in files if str(scratch.disk.parent) in file]


@pytest.mark.parametrize("kind", ["toolchain", "image"])
async def test_files_on_disk_are_bounded_and_do_not_count_as_memory(
    boxes: Rig, scratch: Scratch, image: ImageLayers, kind: str
) -> None:
    root = HostToolchain() if kind == "toolchain" else image
    fill = "head -c 48M /dev/zero > /tmp/a && ls /tmp && echo fits; head -c 48M /dev/zero > /tmp/b || echo full"
    limits = Limits(memory=(96 if boxes.has_own_kernel else 24) << 20, pids=64)
    result, output, errors = await boxes.run("sh", "-c", fill, scratch=scratch, root=root, limits=limits)
    assert (result.code, result.oom_killed, output) == (0, False, "a\nfits\nfull\n"), errors
    assert "No space left" in errors


async def test_a_container_leaves_no_disk_behind(boxes: Rig, scratch: Scratch) -> None:
    container = await boxes.start("sh", "-c", "echo x > /tmp/x; echo made; sleep 1000", scratch=scratch)
    await boxes.output_of(container).until("made")
    assert loop_devices(scratch)
    await container.delete()
    await boxes.runtime.close()
    assert loop_devices(scratch) == []
    assert scratch.disk is not None
    assert [path.name for path in scratch.disk.parent.iterdir()] == ["image"], "the copy never had a name"


async def test_the_next_container_starts_with_an_empty_disk(boxes: Rig, scratch: Scratch) -> None:
    for _ in range(2):
        _, output, _ = await boxes.run("sh", "-c", "ls /tmp; echo x > /tmp/x; ls /tmp", scratch=scratch)
        assert output == "x\n"


def test_an_image_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeFailure, match="cannot make the container's disk: No such file"):
        mount_copy(tmp_path / "image")
