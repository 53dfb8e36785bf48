from __future__ import annotations

import os
from pathlib import Path

import pytest

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


async def test_missing_files_are_errors(files: AsyncFiles) -> None:
    for failing in (files.read("none"), files.list("none"), files.remove("none"), files.move("none", "x")):
        with pytest.raises(FileError, match="none in the sandbox"):
            await failing


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
