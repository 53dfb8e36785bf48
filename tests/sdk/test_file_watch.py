from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from sandpool.sdk.file_watch import AsyncFileWatch, FileEvent
from sandpool.sdk.files import AsyncFiles
from sandpool.service.commands import Commands
from sandpool.service.errors import FileError
from sandpool.service.files import Files
from sandpool.service.sandboxes import Sandbox
from tests.support.fake_pod_client import FakePodClient

BOX = Sandbox.from_object({"metadata": {"name": "box", "namespace": "space"}, "spec": {}})


@pytest.fixture
def files(pods: FakePodClient) -> AsyncFiles:
    commands = Commands(pods)
    return AsyncFiles(commands, Files(commands), BOX)


async def until(watch: AsyncFileWatch, last: FileEvent) -> list[FileEvent]:
    """The events up to one."""
    seen: list[FileEvent] = []
    async for event in watch:
        seen.append(event)
        if event == last:
            return seen
    raise AssertionError(f"the watch ended after {seen}")


async def test_changes_of_a_tree_are_reported(files: AsyncFiles, directory: Path) -> None:
    (directory / "old" / "deep").mkdir(parents=True)
    async with files.watch() as watch:
        file = directory / "old" / "deep" / "file"
        file.write_text("x")
        assert await until(watch, FileEvent("modified", "old/deep/file")) == [
            FileEvent("created", "old/deep/file"),
            FileEvent("modified", "old/deep/file"),
        ]
        file.rename(directory / "old" / "renamed\n")
        assert await watch.read() == FileEvent("moved", "old/renamed\n", source="old/deep/file")
        (directory / "old" / "renamed\n").unlink()
        assert await watch.read() == FileEvent("removed", "old/renamed\n")
        name = os.fsdecode(b"\xff")
        (directory / name).mkdir()
        assert await watch.read() == FileEvent("created", name, is_directory=True)


async def test_new_directories_are_watched_with_what_is_in_them(files: AsyncFiles, directory: Path) -> None:
    async with files.watch() as watch:
        for number in range(20):
            made = directory / f"new{number}" / "below"
            made.mkdir(parents=True)
            (made / "file").touch()
        (directory / "last").touch()
        seen = await until(watch, FileEvent("created", "last"))
    created = [event.path for event in seen if event.kind == "created"]
    assert len(created) == len(set(created))
    assert {f"new{number}/below/file" for number in range(20)} <= set(created)


async def test_moved_directory_is_watched_under_its_new_name(files: AsyncFiles, directory: Path) -> None:
    (directory / "one" / "sub").mkdir(parents=True)
    async with files.watch() as watch:
        (directory / "one").rename(directory / "two")
        assert await watch.read() == FileEvent("moved", "two", is_directory=True, source="one")
        (directory / "two" / "sub" / "file").touch()
        assert await watch.read() == FileEvent("created", "two/sub/file")


async def test_what_leaves_the_tree_is_removed(files: AsyncFiles, directory: Path, tmp_path: Path) -> None:
    (directory / "tree" / "sub").mkdir(parents=True)
    async with files.watch("tree") as watch:
        (directory / "tree" / "sub").rename(tmp_path / "outside")
        assert await watch.read() == FileEvent("removed", "sub", is_directory=True)
        (tmp_path / "outside" / "unseen").touch()
        (directory / "tree" / "seen").touch()
        assert await watch.read() == FileEvent("created", "seen")


async def test_watch_ends_with_its_tree(files: AsyncFiles, directory: Path) -> None:
    (directory / "tree").mkdir()
    async with files.watch("tree") as watch:
        shutil.rmtree(directory / "tree")
        assert [event async for event in watch] == []


async def test_link_out_of_the_tree_is_not_followed(files: AsyncFiles, directory: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    async with files.watch() as watch:
        (directory / "link").symlink_to(outside)
        (outside / "file").touch()
        (directory / "own").touch()
        assert await until(watch, FileEvent("created", "own")) == [
            FileEvent("created", "link"),
            FileEvent("created", "own"),
        ]


async def test_reader_that_stops_waiting_loses_nothing(files: AsyncFiles, directory: Path) -> None:
    async with files.watch() as watch:
        with pytest.raises(TimeoutError):
            await watch.read(timeout=0.0)
        reading = asyncio.ensure_future(watch.read())
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        (directory / "file").touch()
        assert await watch.read() == FileEvent("created", "file")


async def test_what_cannot_be_watched_is_an_error(files: AsyncFiles, directory: Path) -> None:
    (directory / "file").touch()
    for path, reason in (("none", "No such file"), ("file", "Not a directory")):
        with pytest.raises(FileError, match=f"cannot watch {path} in the sandbox: {reason}"):
            await files.watch(path).start()


def test_sandbox_that_sends_something_else_is_refused() -> None:
    for line in (b"", b"x", b"[]", b'{"kind": "created"}', b'{"kind": "x", "path": 3, "directory": true}'):
        with pytest.raises(FileError, match="no event"):
            FileEvent.read(line)
