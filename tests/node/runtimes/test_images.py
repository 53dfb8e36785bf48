"""Containers whose root is an image: directories that are never written to, whatever is in them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandpool.node.runtimes.runtime import Bind, DataFile, ImageLayers, RuntimeFailure, Scratch, Tmpfs
from tests.support.isolation import Rig
from tests.support.tiny_image import copy_programs

pytestmark = pytest.mark.isolation


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A small image: the machine's busybox-like essentials, a directory of root's and one of user 1000's."""
    root = tmp_path / "image"
    for directory in ("bin", "etc", "home/user", "srv/data", "usr/bin"):
        (root / directory).mkdir(parents=True)
    copy_programs(root, "/bin/sh", "/bin/cat", "/bin/ls", "/bin/touch", "/usr/bin/stat", "/usr/bin/id", "/bin/rm")
    (root / "srv/data/file").write_text("of the image")
    (root / "etc/os-release").write_text("ID=tiny\n")
    os.chown(root / "home/user", 1000, 1000)
    return root


def snapshot(directory: Path) -> list[tuple[str, int, int, int]]:
    return sorted(
        (str(path), status.st_mode, status.st_uid, status.st_mtime_ns)
        for path in directory.rglob("*")
        for status in [path.lstat()]
    )


async def sh(boxes: Rig, image: Path, script: str, **spec: object) -> str:
    settings = {"root": ImageLayers((image,)), "env": {"PATH": "/bin:/usr/bin"}, **spec}
    result, output, errors = await boxes.run("sh", "-c", script, **settings)
    assert result.code == 0, errors
    return output


async def test_container_has_only_the_files_of_the_image(boxes: Rig, image: Path) -> None:
    output = await sh(boxes, image, "cat /etc/os-release /srv/data/file; echo; ls /; ls /usr/bin")
    assert output.startswith("ID=tiny\nof the image\n")
    made = {"sys", "tmp"} if boxes.runtime.name == "gvisor" else set()
    assert set(output.split()[4:]) - made == {"bin", "dev", "etc", "home", "lib", "lib64", "proc", "srv", "usr"}


async def test_root_in_a_container_changes_only_its_copy(boxes: Rig, image: Path) -> None:
    before = snapshot(image)
    script = "stat -c %u /srv/data /home/user; echo changed > /srv/data/file; touch /new; rm /etc/os-release"
    assert await sh(boxes, image, f"{script}; cat /srv/data/file", uid=0, gid=0) == "0\n65534\nchanged\n"
    assert snapshot(image) == before
    assert "of the image" in await sh(boxes, image, "cat /srv/data/file"), "the next one starts afresh"


async def test_user_in_a_container_owns_its_files(boxes: Rig, image: Path) -> None:
    script = "stat -c %u /srv/data /home/user; touch /home/user/x; (touch /srv/data/x) 2>/dev/null || echo refused"
    assert await sh(boxes, image, script, uid=1000, gid=1000) == "65534\n1000\nrefused\n"


async def test_layers_are_stacked(boxes: Rig, image: Path, tmp_path: Path) -> None:
    top = tmp_path / "top"
    (top / "srv/data").mkdir(parents=True)
    (top / "srv/data/file").write_text("of the top")
    assert await sh(boxes, image, "cat /srv/data/file", root=ImageLayers((top, image))) == "of the top"


async def test_writes_can_go_to_a_directory(boxes: Rig, image: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    await sh(boxes, image, "echo x > /made", uid=0, gid=0, scratch=Scratch(directory=scratch))
    assert (scratch / "upper/made").read_text() == "x\n"


async def test_writes_in_memory_are_bounded(boxes: Rig, image: Path) -> None:
    copy_programs(image, "/usr/bin/head")
    script = "head -c 10000000 /dev/zero > /big 2>/dev/null || echo full"
    assert await sh(boxes, image, script, uid=0, gid=0, scratch=Scratch(1 << 20)) == "full\n"


async def test_read_only_root_is_enforced(boxes: Rig, image: Path) -> None:
    script = "(touch /x) 2>/dev/null || echo refused; touch /work/x && echo ok"
    output = await sh(boxes, image, script, uid=0, gid=0, read_only_root=True, mounts=(Tmpfs("/work", 1 << 20),))
    assert output == "refused\nok\n"


async def test_mount_points_are_created_in_the_copy(boxes: Rig, image: Path) -> None:
    before = snapshot(image)
    mounts = (DataFile("/deep/in/it/file", b"here"), Tmpfs("/srv/data", 1 << 20))
    assert await sh(boxes, image, "cat /deep/in/it/file; ls /srv/data", mounts=mounts) == "here"
    assert snapshot(image) == before


LINKS = {
    "absolute": "/victim",
    "relative": "../../../../../../../../victim",
    "to where bwrap keeps the host": "/oldroot/victim",
    "through a process": "/proc/self/root/victim",
}


@pytest.mark.parametrize("target", LINKS.values(), ids=LINKS.keys())
async def test_link_in_an_image_cannot_lead_out(boxes: Rig, image: Path, tmp_path: Path, target: str) -> None:
    """A mount point beneath a link: what is made for it is made in the container, or the container is not started."""
    victim = Path(f"/tmp/victim-{os.getpid()}")
    (image / "trap").symlink_to(target.replace("/victim", str(victim)))
    mounts = (DataFile("/trap/file", b"hello"),)
    try:
        assert await sh(boxes, image, "cat /trap/file", mounts=mounts) == "hello"
    except RuntimeFailure as failure:
        assert "cannot make the mount point" in str(failure)
    assert victim.name not in os.listdir(victim.parent)


async def test_generated_files_replace_links_of_the_image(boxes: Rig, image: Path, tmp_path: Path) -> None:
    """Images are known to have /etc/resolv.conf as a link to somewhere."""
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    (image / "etc/resolv.conf").symlink_to(victim)
    assert await sh(boxes, image, "cat /etc/resolv.conf; cat /etc/hostname") == "box\n"
    assert victim.read_text() == "untouched"


@pytest.mark.parametrize("link", ["/etc", "../../../../etc", "/proc/self/root/etc"])
async def test_link_in_a_volume_cannot_lead_out(boxes: Rig, tmp_path: Path, link: str) -> None:
    """Root resolves paths in a volume at the next start, and the sandbox can have changed them."""
    volume = tmp_path / "volume"
    volume.mkdir()
    (volume / "sub").symlink_to(link)
    with pytest.raises(RuntimeFailure, match="cannot mount sub of a volume"):
        await boxes.start("true", mounts=(Bind(volume, "/data", subpath="sub"),))


@pytest.mark.parametrize("link", ["{outside}", "../outside"])
async def test_sub_path_is_not_created_through_a_link(boxes: Rig, tmp_path: Path, link: str) -> None:
    volume, outside = tmp_path / "volume", tmp_path / "outside"
    volume.mkdir()
    outside.mkdir()
    (volume / "sub").symlink_to(link.format(outside=outside))
    with pytest.raises(RuntimeFailure, match="cannot mount sub/new of a volume"):
        await boxes.start("true", mounts=(Bind(volume, "/data", subpath="sub/new", make=True),))
    assert list(outside.iterdir()) == []


async def test_sub_path_is_created_in_a_volume(boxes: Rig, tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    (volume / "a").mkdir(parents=True)
    mounts = (Bind(volume, "/data", subpath="a/b/c", make=True), Bind(volume, "/same", subpath="a/b/c", make=True))
    result, output, _ = await boxes.run("sh", "-c", "echo mine > /data/file; cat /same/file", mounts=mounts)
    assert (result.code, output) == (0, "mine\n")
    assert (volume / "a/b/c/file").read_text() == "mine\n"


async def test_link_within_a_volume_is_followed(boxes: Rig, tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    (volume / "real").mkdir(parents=True)
    (volume / "real/file").write_text("found")
    (volume / "sub").symlink_to("real")
    result, output, _ = await boxes.run("cat", "/data/file", mounts=(Bind(volume, "/data", subpath="sub"),))
    assert (result.code, output) == (0, "found")
