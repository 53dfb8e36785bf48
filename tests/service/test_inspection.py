"""What goes on in a sandbox: the scripts, run as processes of this machine, and answers that try to mislead."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from sandpool.api.kinds import SANDBOX
from sandpool.service.commands import Commands
from sandpool.service.errors import ServiceError
from sandpool.service.inspection import Inspection
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


@pytest.mark.parametrize("answer", [b"", b"\0", b"x\0y\0z\0", b"1\0" * 7, b"1\0001 (a) S\0c\0", b"\xff" * 50])
async def test_nonsense_of_a_sandbox_is_no_process(answer: bytes) -> None:
    assert await answering(answer).processes(BOX) == ()
    assert await answering(b"x 0:ZZZZ 0 0A\n a b c 0A \n" + answer).ports(BOX) == ()


async def test_an_image_without_a_shell_is_said() -> None:
    with pytest.raises(ServiceError, match="cannot be inspected"):
        await answering(b"", code=127).processes(BOX)
