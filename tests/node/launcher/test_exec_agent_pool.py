"""The pool of exec agents: reuse, replacement, and removal of idle ones."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from sandpool.node.descriptors import readable
from sandpool.node.launcher import exec_agent_pool as module
from sandpool.node.launcher.channel import Child
from sandpool.node.launcher.client import LauncherClient
from sandpool.node.launcher.enter import EnterRequest
from sandpool.node.launcher.exec_agent import ExecRequest
from sandpool.node.launcher.exec_agent_pool import (
    IDLE_SECONDS,
    MAX_COMMANDS,
    MAX_IDLE,
    MAX_STUCK,
    STUCK_SECONDS,
    ExecAgentPool,
)
from sandpool.node.launcher.messages import answer, receive_request
from sandpool.node.launcher.requests import LaunchRequest
from sandpool.node.runtimes.runtime import NoSuchCommand, RuntimeFailure
from sandpool.testing.clock import ManualClock

TRUE = ExecRequest(["true"], {}, "/", False)


def enter_request(since: int = 0) -> EnterRequest:
    return EnterRequest(1, "", since, [], 1000, 1000, 64, [], b"")


class Inside:
    """An exec agent that is played by a test."""

    def __init__(self, agent: socket.socket) -> None:
        self.agent = agent

    async def starts(self, pid: int | None = None, **said: object) -> int:
        """Wait for a request and say what came of it; the number of the request."""
        await readable(self.agent.fileno())
        request = receive_request(self.agent)
        assert request is not None
        for descriptor in request.descriptors:
            os.close(descriptor)
        if said:
            answer(self.agent, {"request": request.number, **said})
            return request.number
        pid = pid or os.getpid()
        pidfd = os.pidfd_open(pid)
        answer(self.agent, {"request": request.number, "pid": pid}, pidfd)
        os.close(pidfd)
        return request.number

    def ends(self, number: int, status: int = 0) -> None:
        answer(self.agent, {"request": number, "ended": status})

    async def is_told_to_go(self) -> bool:
        await readable(self.agent.fileno())
        return receive_request(self.agent) is None

    def dies(self) -> None:
        self.agent.close()


class Rootfs(LauncherClient):
    """A launcher of which every exec agent is played by the test."""

    def __init__(self) -> None:
        super().__init__()
        self.inside: list[Inside] = []
        self.refusal: str | None = None
        self.arrived = asyncio.Event()  # what they are told when they are inside
        self.arrived.set()

    async def launch(self, request: LaunchRequest, on_sent: Callable[[], object] = lambda: None) -> Child:
        if self.refusal is not None:
            raise RuntimeFailure(self.refusal)
        self.inside.append(Inside(socket.socket(fileno=os.dup(request.stdio[0]))))
        on_sent()
        await self.arrived.wait()
        return Child(1, os.pidfd_open(1))


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.stage = Rootfs()
        self.exec_agents = ExecAgentPool(self.stage, self.clock)

    def send(self, container: str = "box", since: int = 0) -> asyncio.Task[Child]:
        nothing = [0, 0, 0]
        return asyncio.create_task(self.exec_agents.send(container, TRUE, nothing, lambda: enter_request(since)))

    async def run(self, container: str = "box", since: int = 0) -> None:
        """A command from its beginning to its end, by the last exec agent that came in."""
        sending = self.send(container, since)
        await self.clock.settle()
        number = await self.stage.inside[-1].starts()
        child = await sending
        child.close()
        self.stage.inside[-1].ends(number)
        assert await child.ended == 0
        await self.clock.settle()


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    made.exec_agents.close()
    await made.clock.settle()
    for inside in made.stage.inside:
        inside.dies()


async def test_first_command_starts_an_exec_agent_and_others_reuse_it(world: World) -> None:
    for _ in range(3):
        await world.run()
    await world.run("another box")
    assert len(world.stage.inside) == 2


async def test_concurrent_commands_share_one_exec_agent(world: World) -> None:
    sent = [world.send() for _ in range(5)]
    await world.clock.settle()
    (inside,) = world.stage.inside
    numbers = [await inside.starts() for _ in sent]
    for child in await asyncio.gather(*sent):
        child.close()
    for number in numbers:
        inside.ends(number)


async def test_exec_agent_with_many_commands_is_joined_by_another(world: World) -> None:
    sent = [world.send() for _ in range(MAX_COMMANDS + 1)]
    await world.clock.settle()
    first, second = world.stage.inside
    numbers = [await first.starts() for _ in range(MAX_COMMANDS)]
    number = await second.starts()
    for child in await asyncio.gather(*sent):
        child.close()
    for each in numbers:
        first.ends(each)
    await world.clock.settle()
    second.ends(number)
    assert await second.is_told_to_go(), "one that has nothing to do is enough"


async def test_idle_exec_agent_leaves_after_a_while(world: World) -> None:
    await world.run()
    await world.clock.advance(IDLE_SECONDS - 1)
    await world.run()
    await world.clock.advance(IDLE_SECONDS - 1)
    assert len(world.stage.inside) == 1
    await world.clock.advance(1)
    assert await world.stage.inside[0].is_told_to_go()
    await world.run()
    assert len(world.stage.inside) == 2


async def test_exec_agent_that_got_no_request_leaves_after_a_while(world: World) -> None:
    with pytest.raises(OSError, match="descriptor"):
        await world.exec_agents.send("box", TRUE, [-1, -1, -1], enter_request)
    await world.clock.advance(IDLE_SECONDS)
    assert await world.stage.inside[0].is_told_to_go()


async def test_exec_agent_with_a_running_command_stays(world: World) -> None:
    sending = world.send()
    await world.clock.settle()
    await world.stage.inside[0].starts()
    (await sending).close()
    await world.clock.advance(10 * IDLE_SECONDS)
    await world.run()
    assert len(world.stage.inside) == 1


async def test_number_of_idle_exec_agents_is_limited(world: World) -> None:
    for number in range(MAX_IDLE + 1):
        await world.run(f"box {number}")
    assert await world.stage.inside[0].is_told_to_go()
    for number in range(1, MAX_IDLE + 1):
        sending = world.send(f"box {number}")
        await world.stage.inside[number].starts()
        (await sending).close()
    assert len(world.stage.inside) == MAX_IDLE + 1


async def test_exec_agent_without_a_cgroup_leaves_at_once(world: World) -> None:
    await world.run(since=5)
    assert await world.stage.inside[0].is_told_to_go()


@pytest.mark.parametrize("has_given_up", [False, True])
async def test_stuck_exec_agent_is_bypassed(world: World, has_given_up: bool) -> None:
    first = world.send()
    await world.clock.settle()
    if has_given_up:
        first.cancel()
    await world.clock.advance(module._BUSY_SECONDS + 0.01)
    await world.run()
    stuck, other = world.stage.inside
    number = await stuck.starts(error="late", kind="NoSuchCommand") if has_given_up else await stuck.starts()
    if not has_given_up:
        (await first).close()
        stuck.ends(number)
    await world.clock.settle()
    assert await stuck.is_told_to_go(), "one of two that have nothing to do is enough"
    sending = world.send()
    await other.starts()
    (await sending).close()


async def test_too_many_stuck_exec_agents_reject_commands(world: World) -> None:
    sent = []
    for _ in range(MAX_STUCK):
        sent.append(world.send())
        await world.clock.advance(STUCK_SECONDS + 0.01)
    with pytest.raises(RuntimeFailure, match="do not start"):
        await world.send()
    assert len(world.stage.inside) == MAX_STUCK
    await world.run("another box")
    first = world.stage.inside[0]
    number = await first.starts()
    (await sent[0]).close()
    sending = world.send()
    await first.starts()
    (await sending).close()
    first.ends(number)
    world.exec_agents.close()
    await asyncio.gather(*sent, return_exceptions=True)


async def test_dead_exec_agent_is_replaced(world: World) -> None:
    await world.run()
    world.stage.inside[0].dies()
    await world.run()
    assert len(world.stage.inside) == 2


async def test_exec_agent_that_dies_before_its_arrival_is_reported_is_replaced(world: World) -> None:
    world.stage.arrived.clear()
    await world.run()
    world.stage.inside[0].dies()
    await world.run()
    assert len(world.stage.inside) == 2
    world.stage.arrived.set()


async def test_exec_agent_that_dies_before_the_command_starts_is_an_error(world: World) -> None:
    sending = world.send()
    await world.clock.settle()
    await readable(world.stage.inside[0].agent.fileno())
    world.stage.inside[0].dies()
    (error,) = await asyncio.gather(sending, return_exceptions=True)
    assert isinstance(error, RuntimeFailure) and "is not running" in str(error)


async def test_running_command_is_killed_with_its_exec_agent(world: World) -> None:
    sending = world.send()
    await world.clock.settle()
    await world.stage.inside[0].starts()
    child = await sending
    world.stage.inside[0].dies()
    assert await child.ended == signal.SIGKILL
    child.close()


async def test_exec_agent_that_cannot_enter_is_an_error(world: World) -> None:
    world.stage.refusal = "cannot enter"
    (error,) = await asyncio.gather(world.send(), return_exceptions=True)
    assert isinstance(error, RuntimeFailure) and str(error) == "cannot enter"
    world.stage.refusal = None
    await world.run()


async def test_missing_program_keeps_the_exec_agent(world: World) -> None:
    sending = world.send()
    await world.clock.settle()
    await world.stage.inside[0].starts(error="no such thing", kind="NoSuchCommand")
    (error,) = await asyncio.gather(sending, return_exceptions=True)
    assert isinstance(error, NoSuchCommand)
    await world.run()
    assert len(world.stage.inside) == 1
    await world.clock.advance(IDLE_SECONDS)
    assert await world.stage.inside[0].is_told_to_go()


async def test_cancelled_command_is_killed_and_awaited(world: World) -> None:
    """Even if the exec agent would leave at once: it would still start a pending command before it ends."""
    sending = world.send(since=5)
    await world.clock.settle()
    sending.cancel()
    await world.clock.settle()
    (inside,) = world.stage.inside
    victim = await asyncio.create_subprocess_exec("sleep", "1000")
    number = await inside.starts(victim.pid)
    assert await victim.wait() == -signal.SIGKILL
    inside.ends(number, signal.SIGKILL)
    assert await inside.is_told_to_go()


async def test_deleting_a_container_dismisses_its_exec_agent(world: World) -> None:
    await world.run("one")
    await world.run("two")
    world.exec_agents.dismiss("one")
    assert await world.stage.inside[0].is_told_to_go()
    sending = world.send("two")
    await world.stage.inside[1].starts()
    (await sending).close()
