"""What goes on in a sandbox: the scripts, run as processes of this machine, and answers that try to mislead."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from sandpool.api.kinds import SANDBOX
from sandpool.service.commands import Commands
from sandpool.service.errors import FileError, ServiceError
from sandpool.service.inspection import MAX_ENTRIES, Inspection
from sandpool.service.sandboxes import Sandbox
from sandpool.testing.objects import new
from tests.support.fake_pod_client import FakePodClient, PlayedSession
from tests.support.local_commands import LocalCommands

BOX = Sandbox.from_object(new(SANDBOX, "box", namespace="default"))


@pytest.fixture
def inspection(tmp_path: Path) -> Inspection:
    return Inspection(Commands(FakePodClient(LocalCommands(tmp_path).play)))


def answering(text: bytes, code: int = 0) -> Inspection:
    async def play(session: PlayedSession) -> int:
        session.write(text)
        return code

    return Inspection(Commands(FakePodClient(play)))


async def test_processes_have_their_command_and_memory(inspection: Inspection) -> None:
    found = {each.pid: each for each in await inspection.processes(BOX)}
    own = found[os.getpid()]
    arguments = Path("/proc/self/cmdline").read_text().rstrip("\0").split("\0")  # noqa: ASYNC240
    assert own.command == " ".join(arguments).strip()
    assert own.parent == os.getppid()
    assert own.memory > 1 << 20
    assert own.threads >= 1
    assert not any("/proc/[0-9]" in each.command for each in found.values())  # those that list the processes


async def test_ports_are_those_that_are_listened_on(inspection: Inspection) -> None:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert port in await inspection.ports(BOX)
    server.close()
    await server.wait_closed()
    assert port not in await inspection.ports(BOX)


async def test_a_directory_lists_every_kind_of_entry_and_name(inspection: Inspection, tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("12345")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "line\nbreak").write_text("")
    (tmp_path / "-n").write_text("x")
    (tmp_path / "link").symlink_to("nowhere")
    found = await inspection.directory(BOX)
    assert found.path == os.path.realpath(tmp_path)  # noqa: ASYNC240
    kinds = {each.name: each.kind for each in found.entries}
    assert kinds == {"a file": "file", ".hidden": "directory", "line\nbreak": "file", "-n": "file", "link": "link"}
    sizes = {each.name: each.size for each in found.entries}
    assert (sizes["a file"], sizes["-n"]) == (5, 1)
    assert not found.truncated


async def test_an_empty_directory_is_empty(inspection: Inspection, tmp_path: Path) -> None:
    assert (await inspection.directory(BOX, str(tmp_path))).entries == ()


async def test_a_large_directory_is_cut(inspection: Inspection, tmp_path: Path) -> None:
    for number in range(MAX_ENTRIES + 5):
        (tmp_path / str(number)).touch()
    found = await inspection.directory(BOX)
    assert len(found.entries) == MAX_ENTRIES
    assert found.truncated


@pytest.mark.parametrize("path", ["missing", "/etc/hostname"])
async def test_what_is_no_directory_is_an_error(inspection: Inspection, path: str) -> None:
    with pytest.raises(FileError, match=f"cannot list {path}"):
        await inspection.directory(BOX, path)


async def test_a_file_is_read_up_to_a_limit_and_written(inspection: Inspection, tmp_path: Path) -> None:
    await inspection.write(BOX, "new file", b"\0123456789")
    assert (tmp_path / "new file").read_bytes() == b"\0123456789"
    assert await inspection.read(BOX, "new file", 100) == (b"\0123456789", False)
    assert await inspection.read(BOX, "new file", 4) == (b"\012345"[:4], True)
    with pytest.raises(FileError, match="not a regular file"):
        await inspection.read(BOX, ".", 4)
    with pytest.raises(FileError, match="cannot write"):
        await inspection.write(BOX, "missing/file", b"")


@pytest.mark.parametrize("answer", [b"", b"\0", b"x\0y\0z\0", b"1\0" * 7, b"1\0001 (a) S\0c\0", b"\xff" * 50])
async def test_nonsense_of_a_sandbox_is_no_process(answer: bytes) -> None:
    assert await answering(answer).processes(BOX) == ()
    assert await answering(b"x 0:ZZZZ 0 0A\n a b c 0A \n" + answer).ports(BOX) == ()


@pytest.mark.parametrize("table", [b"", b"x\n", b"81a4 1 1\n81a4 1 1\n81a4 1 1\n", b"zz 1 1\n81a4 x 1\n"])
async def test_a_table_that_does_not_match_its_names_is_not_believed(table: bytes) -> None:
    found = await answering(b"/dir\na\0b\0\0" + table).directory(BOX)
    assert [(each.name, each.kind, each.size) for each in found.entries] == [("a", "other", 0), ("b", "other", 0)]


async def test_an_image_without_a_shell_is_said() -> None:
    with pytest.raises(ServiceError, match="cannot be inspected"):
        await answering(b"", code=127).processes(BOX)
