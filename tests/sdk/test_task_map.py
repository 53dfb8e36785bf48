from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from sandpool import PoolExhausted, SandpoolError, TaskError
from sandpool.api.kinds import SANDBOX_CLAIM
from sandpool.api.labels import MAX_CLAIMS
from sandpool.kube.errors import ServiceUnavailable
from sandpool.sdk.client import AsyncClient
from sandpool.sdk.errors import Refused
from sandpool.sdk.sandbox import AsyncSandbox
from sandpool.sdk.task_map import TaskMap, show_bar, source_of
from sandpool.service.errors import UnknownName
from sandpool.testing.world import World
from tests.support.fake_pod_client import FakePodClient
from tests.support.namespace_limits import limit


def double(number: int) -> int:
    return number * 2


async def pool(world: World, replicas: int = 2) -> None:
    await world.template(name="python")
    await world.pool(replicas=replicas, name="python", template="python")
    await world.filled(replicas)


async def test_results_are_in_order_and_nothing_is_left(world: World, client: AsyncClient) -> None:
    await pool(world)
    seen: list[tuple[int, int]] = []
    found = await client.map(double, range(5), parallelism=2, progress=lambda *each: seen.append(each))
    assert found == [0, 2, 4, 6, 8]
    assert seen == [(number, 5) for number in range(1, 6)]
    assert await world.all(SANDBOX_CLAIM) == []


async def test_tasks_share_a_process_only_in_sessions(world: World, client: AsyncClient) -> None:
    await pool(world)
    code = "globals().setdefault('seen', []).append(input)\nseen"
    assert await client.map(code, [1, 2], parallelism=1) == [[1], [2]]
    assert await client.map(code, [1, 2], parallelism=1, sessions=True) == [[1], [1, 2]]


async def test_fresh_gives_every_task_a_sandbox(world: World, client: AsyncClient, pods: FakePodClient) -> None:
    await pool(world)
    assert await client.map("input", [1, 2, 3], parallelism=1, fresh=True) == [1, 2, 3]
    assert len({pod for _, pod in pods.asked}) == 3


async def test_failed_task_ends_the_map_or_is_a_result(world: World, client: AsyncClient) -> None:
    await pool(world)
    with pytest.raises(TaskError, match="ZeroDivisionError"):
        await client.map("1 / input", [1, 0], parallelism=1)
    assert await world.all(SANDBOX_CLAIM) == []
    for sessions in (False, True):
        one, error, last = await client.map(
            "1 / input", [1, 0, 2], parallelism=1, return_exceptions=True, sessions=sessions
        )
        assert (one, type(error), last) == (1.0, TaskError, 0.5)
    (ended,) = await client.map("import os; os._exit(3)", [1], return_exceptions=True)
    assert isinstance(ended, TaskError)


async def test_failures_of_the_service_are_retried(world: World, client: AsyncClient, pods: FakePodClient) -> None:
    await pool(world)
    execute, failures = pods.execute, iter([ServiceUnavailable("away"), OSError("gone")])

    async def failing(*arguments: object) -> object:
        if (failure := next(failures, None)) is not None:
            raise failure
        return await execute(*arguments)  # type: ignore[arg-type]

    pods.execute = failing  # type: ignore[assignment, method-assign]
    client_wait = "sandpool.sdk.sandbox._DIAGNOSIS"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_wait, 0.0)
        assert await client.map(double, [21], retries=2) == [42]


async def test_map_waits_for_sandboxes_longer_than_a_lease(world: World, client: AsyncClient) -> None:
    await pool(world)
    await limit(world, MAX_CLAIMS, "1")
    first = await client.sandbox()
    mapping = asyncio.create_task(client.map(double, [1, 2, 3], parallelism=2))
    await world.eventually(lambda: len(client.leases._held) == 3)
    moment = datetime.now(UTC) + timedelta(minutes=2)  # the leases that the claims were made with have ended
    client.leases.clock = lambda: moment
    await client.leases.renew()
    ends = [each["spec"]["lifecycle"]["shutdownTime"] for each in await world.all(SANDBOX_CLAIM)]
    assert all(datetime.fromisoformat(end) > moment for end in ends)
    await first.release()
    assert await mapping == [2, 4, 6]


class Pool:
    """A pool with few sandboxes: the claim of any other waits until it is cancelled, or fails."""

    def __init__(self, sandbox: AsyncSandbox, sandboxes: int, failure: SandpoolError | None = None) -> None:
        self.made = sandbox
        self.left = sandboxes
        self.failure = failure
        self.claims = self.cancelled = 0

    @asynccontextmanager
    async def sandbox(self, pool: str) -> AsyncIterator[AsyncSandbox]:
        self.claims += 1
        if not self.left:
            if self.failure is not None:
                raise self.failure
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled += 1
        self.left -= 1
        yield self.made
        self.left += 1

    def map(self, code: str, return_exceptions: bool = False) -> TaskMap:
        return TaskMap(cast(AsyncClient, self), code, "python", True, False, 2, None, return_exceptions)


async def test_pool_with_few_sandboxes_delays_no_task(world: World, client: AsyncClient) -> None:
    await pool(world)
    async with client.sandbox() as sandbox:
        slow = Pool(sandbox, 1)
        assert await slow.map("input").run([*range(20)], 10, False) == [*range(20)]
        assert (slow.left, slow.cancelled) == (1, 9)
        failing = Pool(sandbox, 1, PoolExhausted("no sandbox"))
        assert await failing.map("input").run([*range(20)], 10, False) == [*range(20)]


async def test_pool_without_sandboxes_ends_the_map(world: World, client: AsyncClient) -> None:
    await pool(world)
    async with client.sandbox() as sandbox:
        empty = Pool(sandbox, 0, PoolExhausted("no sandbox"))
        with pytest.raises(PoolExhausted):
            await empty.map("input").run([1], 1, False)
        assert empty.claims == 3  # two retries
        found = await empty.map("input", return_exceptions=True).run([1, 2], 1, False)
        assert [type(each) for each in found] == [PoolExhausted, PoolExhausted]
        unknown = Pool(sandbox, 0, UnknownName("no such pool"))
        with pytest.raises(UnknownName):
            await unknown.map("input").run([1], 1, False)
        assert unknown.claims == 1
    assert await client.map("input", []) == []


async def test_input_that_cannot_be_passed_is_refused_alone(
    world: World, client: AsyncClient, pods: FakePodClient
) -> None:
    await pool(world)
    for unfit in ({2}, 2**70, "\ud800"):
        with pytest.raises(Refused, match=r"input 1 was refused: .*JSON"):
            await client.map("input", [1, unfit], parallelism=1)
        for sessions in (False, True):
            one, error, last = await client.map(
                "input", [1, unfit, 3], parallelism=1, sessions=sessions, return_exceptions=True
            )
            assert (one, type(error), last) == (1, Refused, 3)


async def test_error_of_the_progress_bar_is_raised_as_it_is(world: World, client: AsyncClient) -> None:
    await pool(world)

    def show(finished: int, total: int) -> None:
        raise ValueError(f"{finished} of {total}")

    with pytest.raises(ValueError, match="1 of 1"):
        await client.map("input", [1], progress=show)
    assert await world.all(SANDBOX_CLAIM) == []


class Doubler:
    def double(self, number: int) -> int:
        return number * 2


def test_task_is_code_or_a_function_with_source() -> None:
    with pytest.raises(Refused, match="method of an object"):
        source_of(Doubler().double)
    assert source_of("  input") == "input"
    assert source_of(double) == "def double(number: int) -> int:\n    return number * 2\n\ndouble(input)"
    for unfit in (lambda each: each, len):
        with pytest.raises(Refused):
            source_of(unfit)


def test_bar_shows_the_share(capsys: pytest.CaptureFixture[str]) -> None:
    show_bar(1, 2)
    show_bar(2, 2)
    assert capsys.readouterr().err.endswith(f"1/2\r[{'#' * 30}] 2/2\n")
