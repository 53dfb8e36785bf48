from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sandpool.sdk.files import AsyncFiles
from sandpool.service.commands import Commands
from sandpool.service.errors import FileError
from sandpool.service.files import Files
from sandpool.service.sandboxes import Sandbox
from tests.support.fake_pod_client import FakePodClient, PlayedSession

BOX = Sandbox.from_object({"metadata": {"name": "box", "namespace": "space"}, "spec": {}})


@pytest.fixture
def files(pods: FakePodClient) -> AsyncFiles:
    commands = Commands(pods)
    return AsyncFiles(commands, Files(commands), BOX)


async def test_files_are_written_read_listed_moved_and_removed(files: AsyncFiles, directory: Path) -> None:
    await files.write("a/b/text", "héllo")
    assert await files.read_text("a/b/text") == "héllo"
    await files.write("a/b/text", b"\x00\xff")
    assert await files.read("a/b/text") == b"\x00\xff"
    await files.write("-n", "odd names")
    await files.write("a/.hidden file\n", "")
    assert await files.list("a") == [".hidden file\n", "b"]
    assert await files.list() == ["-n", "a"]
    await files.move("a/b", "c")
    assert (await files.exists("a/b"), await files.exists("c/text")) == (False, True)
    await files.remove("c")
    await files.remove("-n")
    assert os.listdir(directory) == ["a"]


async def test_entries_have_types_and_sizes(files: AsyncFiles, directory: Path) -> None:
    await files.write("a/b/text", "12345")
    (directory / "a" / "link").symlink_to("b/text")
    before, link = await files.entries("a")
    assert (before.name, before.type, before.path) == ("b", "directory", f"{directory}/a/b")
    assert (link.name, link.type, link.link) == ("link", "file", "b/text")
    assert [(each.name, each.size) for each in await files.entries(depth=3) if each.name == "text"] == [("text", 5)]
    assert await files.entries("a/b", depth=9) == [each for each in await files.entries(depth=9) if each.name == "text"]


async def test_missing_files_are_errors(files: AsyncFiles) -> None:
    with pytest.raises(FileError, match="no file or directory none"):
        await files.entries("none")
    for failing in (files.read("none"), files.list("none"), files.remove("none"), files.move("none", "x")):
        with pytest.raises(FileError, match="none in the sandbox"):
            await failing


async def test_answers_of_a_sandbox_are_limited() -> None:
    async def endless(session: PlayedSession) -> int:
        for _ in range(20):
            session.write(b"name\0" * 200_000)
        return 0

    commands = Commands(FakePodClient(endless))
    files = AsyncFiles(commands, Files(commands), BOX)
    with pytest.raises(FileError, match="cannot list x in the sandbox: its answer is longer than 16777216 bytes"):
        await files.list("x")
    with pytest.raises(FileError, match="its answer is longer than 65536 bytes"):
        await files.stat("x")
    assert len(await files.read("x")) == 20_000_000


async def test_trees_are_copied_both_ways(files: AsyncFiles, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "one").write_text("1")
    copied: list[int] = []
    await files.upload(tree, "there", progress=copied.append)
    assert await files.read("there/one") == b"1"
    await files.download("there", tmp_path / "back")
    assert (tmp_path / "back" / "one").read_text() == "1"
    assert sum(copied) == 1


async def test_status_of_files_directories_and_links(files: AsyncFiles, directory: Path) -> None:
    (directory / "-odd").write_text("12345")
    (directory / "-odd").chmod(0o640)
    os.utime(directory / "-odd", (0, 1_000_000_000))
    (directory / "link").symlink_to("to\nnowhere")
    found = await files.stat("-odd")
    assert found[:4] == ("file", 5, 0o640, datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC))
    assert (found.user, found.group) == (os.getuid(), os.getgid())
    link = await files.stat("link")
    assert (link.type, link.target) == ("link", "to\nnowhere")
    assert (await files.stat(".")).type == "directory"
    assert (await files.stat("/dev/null")).type == "other"
    with pytest.raises(FileError, match="cannot read the status of none in the sandbox"):
        await files.stat("none")


async def test_files_are_streamed_both_ways(files: AsyncFiles, directory: Path) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for number in range(3):
            yield bytes([number]) * 100_000
            await asyncio.sleep(0)

    await files.write("big", pieces())
    with (directory / "big").open("rb") as file:
        await files.write("copy", file)
    content = b"".join([piece async for piece in files.stream("copy")])
    assert content == b"".join(bytes([number]) * 100_000 for number in range(3))
    with pytest.raises(FileError, match="cannot read none in the sandbox"):
        _ = [piece async for piece in files.stream("none")]


async def test_source_that_fails_while_it_is_sent_is_the_error(files: AsyncFiles) -> None:
    async def failing() -> AsyncIterator[bytes]:
        yield b"x"
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more"):
        await files.write("file", failing())
