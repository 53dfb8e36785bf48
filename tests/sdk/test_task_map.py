from __future__ import annotations

import pytest

from sandpool import TaskError
from sandpool.api.kinds import SANDBOX_CLAIM
from sandpool.kube.errors import ServiceUnavailable
from sandpool.sdk.client import AsyncClient
from sandpool.sdk.errors import Refused
from sandpool.sdk.task_map import show_bar, source_of
from sandpool.testing.world import World
from tests.support.fake_pod_client import FakePodClient


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


def test_task_is_code_or_a_function_with_source() -> None:
    assert source_of("  input") == "input"
    assert source_of(double) == "def double(number: int) -> int:\n    return number * 2\n\ndouble(input)"
    for unfit in (lambda each: each, len):
        with pytest.raises(Refused):
            source_of(unfit)


def test_bar_shows_the_share(capsys: pytest.CaptureFixture[str]) -> None:
    show_bar(1, 2)
    show_bar(2, 2)
    assert capsys.readouterr().err.endswith(f"1/2\r[{'#' * 30}] 2/2\n")
