"""Files that a parent opens for a child."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sandpool.explain.log_files import with_rotated
from sandpool.process.handed_files import FileServer, HandedFiles


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "audit.log"


@pytest_asyncio.fixture
async def server(log: Path) -> AsyncIterator[FileServer]:
    made = FileServer(lambda: with_rotated(log))
    yield made
    made.close()


def write(log: Path, text: str) -> None:
    log.write_text(text)


async def lines(files: HandedFiles) -> list[bytes]:
    return await asyncio.to_thread(lambda: list(files.lines()))


async def test_child_reads_the_files_as_they_are_when_it_asks(server: FileServer, log: Path) -> None:
    files = HandedFiles(server.connect())
    write(log, "one\n")
    assert await lines(files) == [b"one\n"]
    os.rename(log, f"{log}.1")
    write(log, "two\n")
    assert await lines(files) == [b"one\n", b"two\n"]
    files.connection.close()


async def test_descriptors_cannot_be_written(server: FileServer, log: Path) -> None:
    write(log, "one\n")
    files = HandedFiles(server.connect())
    (file,) = await asyncio.to_thread(files._open)
    with file, pytest.raises(OSError, match="Bad file descriptor"):
        os.write(file.fileno(), b"x")
    files.connection.close()


async def test_missing_file_is_an_error_and_not_the_end(server: FileServer, log: Path) -> None:
    files = HandedFiles(server.connect())
    with pytest.raises(OSError, match="No such file"):
        await lines(files)
    write(log, "one\n")
    assert await lines(files) == [b"one\n"]
    files.connection.close()


async def test_child_that_asks_for_anything_else_gets_nothing(server: FileServer, log: Path) -> None:
    write(log, "one\n")
    files = HandedFiles(server.connect())
    files.connection.send(b"/etc/shadow")
    with pytest.raises(OSError, match=r"gone|Broken pipe|reset"):
        await lines(files)
    files.connection.close()


async def test_child_that_reads_no_answer_is_left(server: FileServer, log: Path) -> None:
    write(log, "one\n")
    files = HandedFiles(server.connect())
    files.connection.setblocking(False)
    with pytest.raises(OSError, match=r"Broken pipe|reset"):
        while True:
            try:
                files.connection.send(b"open")
            except BlockingIOError:
                await asyncio.sleep(0)
    files.connection.close()
