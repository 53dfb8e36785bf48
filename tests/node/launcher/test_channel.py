from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from sandpool.node.launcher.channel import Child, ProcessChannel
from sandpool.node.launcher.messages import answer, receive_request
from sandpool.node.runtimes.runtime import RuntimeFailure


class Rig:
    """An channel, and the other side of it. Nothing is received before it is asked for."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.unwanted: list[int] = []
        self.channel = ProcessChannel(ours, on_end=lambda: None, unwanted=lambda child: self.unwanted.append(child.pid))
        asyncio.get_running_loop().remove_reader(ours)

    async def asked(self) -> asyncio.Task[Child]:
        task = asyncio.create_task(self.channel.submit(b"{}", ()))
        await asyncio.sleep(0)
        return task

    def reply(self, **what: object) -> None:
        received = receive_request(self.theirs)
        assert received is not None
        answer(self.theirs, {"request": received.number, **what})
        self.channel._receive()


@pytest_asyncio.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    yield rig
    rig.channel.close("over", None)
    rig.theirs.close()


async def test_requester_gets_the_process(rig: Rig) -> None:
    task = await rig.asked()
    rig.reply(pid=7)
    assert ((await task).pid, rig.unwanted) == (7, [])


async def test_process_of_a_request_cancelled_before_is_unwanted(rig: Rig) -> None:
    task = await rig.asked()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    rig.reply(pid=7)
    assert rig.unwanted == [7]


async def test_process_of_a_request_cancelled_at_the_same_time_is_unwanted(rig: Rig) -> None:
    task = await rig.asked()
    rig.reply(pid=7)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert rig.unwanted == [7]


async def test_failed_request_leaves_no_unwanted_process(rig: Rig) -> None:
    task = await rig.asked()
    rig.reply(error="no", kind=RuntimeFailure.__name__)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert rig.unwanted == []
