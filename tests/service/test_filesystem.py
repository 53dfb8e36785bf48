from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import pytest_asyncio

from sandpool.service import filesystem
from sandpool.service.commands import Commands
from sandpool.service.errors import FileError
from sandpool.service.filesystem import (
    DiskFull,
    Entry,
    EntryType,
    FileExists,
    Filesystem,
    IsDirectory,
    NoSuchFile,
    NotDirectory,
)
from sandpool.service.sandboxes import Sandbox
from tests.support.fake_pod_client import FakePodClient, PlayedSession
from tests.support.local_commands import LocalCommands

ENTRY = b"\0".join([b"f", b"f", b"644", b"1", b"1", b"a", b"b", b"c", b"", b""])
BOX = Sandbox.from_object({"metadata": {"name": "box", "namespace": "space"}, "spec": {}})


@pytest_asyncio.fixture(params=["gnu", "busybox"])
async def files(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Filesystem]:
    """In a sandbox whose find knows -printf, and in one whose find does not."""
    commands = LocalCommands(tmp_path)

    async def play(session: PlayedSession) -> int | str:
        if request.param == "busybox":
            words = [word.replace("-printf ''", "-no-such-test ''") for word in session.options.command]
            session.options = session.options._replace(command=words)
        return await commands.play(session)

    pods = FakePodClient(play)
    yield Filesystem(Commands(pods))
    await pods.close()


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for each in data:
        yield each


async def content(files: Filesystem, path: str) -> bytes:
    async with files.reading(BOX, path) as found:
        return b"".join([piece async for piece in found])


async def test_file_is_written_described_and_read(files: Filesystem, tmp_path: Path) -> None:
    written = await files.write(BOX, "a b/größe\n", pieces(b"one ", b"two"))
    assert (written.path, written.name, written.size) == (str(tmp_path / "a b/größe\n"), "größe\n", 7)
    assert await content(files, "a b/größe\n") == b"one two"
    os.utime(written.path, (0, 1_000_000_000))
    os.chmod(written.path, 0o4750)
    described = await files.stat(BOX, "a b/größe\n")
    assert (described.type, described.mode, described.permissions) == (EntryType.FILE, 0o4750, "-rwsr-x---")
    assert described.modified == datetime.fromtimestamp(1_000_000_000, UTC)
    assert (described.owner, described.link) == (written.owner, None)
    await files.write(BOX, "a b/größe\n", pieces())
    assert await content(files, "a b/größe\n") == b""


async def test_links_are_described_with_the_type_of_their_target(files: Filesystem, tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    for name, target in (("to-dir", "dir"), ("nowhere", "none")):
        os.symlink(target, tmp_path / name)
    found = {each.name: each for each in await files.list(BOX, ".")}
    assert {name: (each.type, each.link) for name, each in found.items()} == {
        "dir": (EntryType.DIRECTORY, None),
        "to-dir": (EntryType.DIRECTORY, "dir"),
        "nowhere": (EntryType.OTHER, "none"),
    }
    assert await files.stat(BOX, "nowhere") == found["nowhere"]
    assert await files.list(BOX, "to-dir") == []


async def test_trees_are_listed_to_a_depth(files: Filesystem, tmp_path: Path) -> None:
    (tmp_path / "d/e/f").mkdir(parents=True)
    (tmp_path / "d/.hidden").touch()
    assert [each.path.removeprefix(f"{tmp_path}/") for each in await files.list(BOX, "d")] == ["d/.hidden", "d/e"]
    assert [each.name for each in await files.list(BOX, f"{tmp_path}/d", 9)] == [".hidden", "e", "f"]
    assert await files.list(BOX, "d/e/f") == []


async def test_directories_and_files_move(files: Filesystem, tmp_path: Path) -> None:
    made = await files.make_directory(BOX, "a/b")
    assert (made.path, made.type) == (str(tmp_path / "a/b"), EntryType.DIRECTORY)
    with pytest.raises(FileExists):
        await files.make_directory(BOX, "a/b")
    await files.write(BOX, "x", pieces(b"x"))
    with pytest.raises(NotDirectory):
        await files.make_directory(BOX, "x")
    assert (await files.move(BOX, "x", "new/y")).path == str(tmp_path / "new/y")
    with pytest.raises(FileExists):
        await files.move(BOX, "new/y", "a")
    await files.remove(BOX, "a")
    await files.remove(BOX, "a")
    assert os.listdir(tmp_path) == ["new"]


async def test_errors_have_types(files: Filesystem, tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "file").touch()
    for work, error in (
        (lambda: files.stat(BOX, "none"), NoSuchFile),
        (lambda: files.list(BOX, "none"), NoSuchFile),
        (lambda: content(files, "none"), NoSuchFile),
        (lambda: files.move(BOX, "none", "x"), NoSuchFile),
        (lambda: files.list(BOX, "file"), NotDirectory),
        (lambda: content(files, "dir"), IsDirectory),
        (lambda: files.write(BOX, "dir", pieces(b"x")), IsDirectory),
        (lambda: files.write(BOX, "file/below", pieces(b"x")), FileError),
        (lambda: files.stat(BOX, "nul\0"), FileError),
        (lambda: files.stat(BOX, ""), FileError),
    ):
        with pytest.raises(error):
            await work()


@pytest.mark.parametrize(("largest", "error"), [(50_000, DiskFull), (100_000, FileError)])
async def test_full_disk_is_found_by_writing(tmp_path: Path, largest: int, error: type[FileError]) -> None:
    """No file may be as large as the block that the check writes, or one may: then another cause is shown."""
    commands = LocalCommands(tmp_path)

    async def play(session: PlayedSession) -> int | str:
        limited = ("prlimit", f"--fsize={largest}", "env", "--ignore-signal=XFSZ", *session.options.command)
        session.options = session.options._replace(command=limited)
        return await commands.play(session)

    pods = FakePodClient(play)
    with pytest.raises(FileError) as raised:
        await Filesystem(Commands(pods)).write(BOX, "new/x", pieces(bytes(200_000)))
    await pods.close()
    assert type(raised.value) is error
    assert os.listdir(tmp_path / "new") == ["x"]


async def test_names_are_no_options_and_home_is_known(files: Filesystem, tmp_path: Path) -> None:
    await files.write(BOX, "-delete", pieces(b"x"))
    assert [each.name for each in await files.list(BOX, ".")] == ["-delete"]
    assert (await files.stat(BOX, "~")).path == os.environ["HOME"]
    assert (await files.stat(BOX, "/")).path == "/"


async def test_source_that_fails_fails_the_write(files: Filesystem) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"half"
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await files.write(BOX, "x", broken())


@pytest.mark.parametrize(
    "said", [b"", b"f\0f\0644\0", b"f\0f\0999\0" + b"1\0" * 5 + b"\0", b"f\0f\0644\0-\0nan\0a\0b\0c\0\0"]
)
async def test_descriptions_are_not_trusted(said: bytes) -> None:
    async def play(session: PlayedSession) -> int:
        session.write(said)
        return 0

    with pytest.raises(FileError, match="cannot look at x"):
        await Filesystem(Commands(FakePodClient(play))).stat(BOX, "x")


async def endless(session: PlayedSession) -> int:
    session.write(ENTRY * 400_000)
    return 0


async def test_number_of_entries_of_a_directory_is_limited() -> None:
    """The code in the sandbox decides what the listing says."""
    with pytest.raises(FileError, match="more than 50000 entries in x"):
        await Filesystem(Commands(FakePodClient(endless))).list(BOX, "x")


async def test_size_of_a_description_is_limited() -> None:
    files = Filesystem(Commands(FakePodClient(endless)))
    with pytest.raises(FileError, match="the description of x is longer than 64 KiB"):
        await files.stat(BOX, "x")


async def test_large_directory_is_read_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    readers: list[bool] = []
    read = filesystem._sorted_entries

    def noted(described: bytes, path: str) -> list[Entry]:
        readers.append(threading.current_thread() is threading.main_thread())
        return read(described, path)

    monkeypatch.setattr(filesystem, "_sorted_entries", noted)

    async def play(session: PlayedSession) -> int:
        session.write(ENTRY * int(session.options.command[-1]))
        return 0

    files = Filesystem(Commands(FakePodClient(play)))
    assert [len(await files.list(BOX, "x", number)) for number in (10, 20_000)] == [10, 20_000]
    assert readers == [True, False]
