"""Cancelled wherever it waits, a program gives its sandboxes back. Answers that are lost leave none behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import pytest

from sandpool.api.kinds import SANDBOX_CLAIM
from sandpool.kube.transport import Request
from sandpool.sdk.client import AsyncClient
from sandpool.sdk.errors import ServiceUnavailable
from sandpool.service.service import Service
from sandpool.testing.world import World
from tests.support.fake_pod_client import FakePodClient


class CancelledAt:
    """Runs a coroutine and cancels its task when it waits for the ``number``-th time."""

    def __init__(self, work: Coroutine[Any, Any, Any], number: int) -> None:
        self.work = work
        self.number = number
        self.waited = 0

    def __await__(self) -> Generator[Any, None, Any]:
        answer: Any = None
        failure: BaseException | None = None
        while True:
            try:
                waiting = self.work.send(answer) if failure is None else self.work.throw(failure)
            except StopIteration as end:
                return end.value
            self.waited += 1
            if self.waited == self.number:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            answer, failure = None, None
            try:
                answer = yield waiting
            except BaseException as error:  # noqa: BLE001
                failure = error


async def cancelled(work: Coroutine[Any, Any, Any], number: int) -> bool:
    """Whether the work was cancelled at this point, or had ended before."""
    at = CancelledAt(work, number)

    async def run() -> None:
        await at

    (outcome,) = await asyncio.gather(asyncio.create_task(run()), return_exceptions=True)
    if outcome is not None and not isinstance(outcome, asyncio.CancelledError):
        raise outcome
    assert (at.waited < number) == (outcome is None)
    return outcome is not None


async def hold(client: AsyncClient) -> None:
    async with client.sandbox():
        pass


async def hold_by_hand(client: AsyncClient) -> None:
    sandbox = await client.sandbox()
    try:
        await asyncio.sleep(0)
    finally:
        await sandbox.release()


async def run_a_command(client: AsyncClient) -> None:
    async with client.sandbox() as sandbox:
        (await sandbox.run("echo hello")).check()


async def run_code(client: AsyncClient) -> None:
    async with client.sandbox() as sandbox:
        await sandbox.code.run("1 + 1")


async def use_a_terminal(client: AsyncClient) -> None:
    async with client.sandbox() as sandbox, sandbox.shell("echo hello") as shell:
        await shell.wait()


async def share_one(client: AsyncClient) -> None:
    async with client.sandbox(key="job"):
        pass


async def use_files(client: AsyncClient) -> None:
    async with client.sandbox() as sandbox:
        await sandbox.files.write("a/b", "text")
        assert await sandbox.files.read_text("a/b") == "text"
        assert b"".join([piece async for piece in sandbox.files.stream("a/b")]) == b"text"
        await sandbox.files.upload(__file__, "a/c")
        # These sandboxes share a directory, and the unfinished file of a cancelled upload may still be there.
        assert [each for each in await sandbox.files.list("a") if not each.startswith(".sandpool-")] == ["b", "c"]
        await sandbox.files.remove("a")


async def use_a_background_process(client: AsyncClient) -> None:
    async with client.sandbox() as sandbox:
        process = await sandbox.start("echo hello")
        await process.wait()


async def suspend_and_resume(client: AsyncClient) -> None:
    async with client.sandbox() as sandbox:
        await sandbox.suspend()
        await sandbox.resume()


async def keep_one(client: AsyncClient) -> None:
    """Cancelled before the program knows the sandbox, it must not stay."""
    await client.sandbox(keep=True)


@pytest.mark.parametrize(
    "use",
    [
        *(hold, hold_by_hand, share_one, keep_one, suspend_and_resume),
        *(run_a_command, run_code, use_a_terminal, use_files, use_a_background_process),
    ],
)
async def test_cancelled_at_every_await_a_program_leaves_no_claim(
    world: World, client: AsyncClient, pods: FakePodClient, use: Callable[[AsyncClient], Coroutine[Any, Any, None]]
) -> None:
    await world.template(name="python")
    await world.pool(replicas=1, name="python", template="python")
    number = 1
    while await cancelled(use(client), number):
        assert await world.all(SANDBOX_CLAIM) == [], f"after await {number}"
        assert all(session.closed for session in pods.sessions)
        assert not client._held
        assert not client.leases._held
        number += 1
    assert number > 3, "the work waits more often than that"


async def test_cancelled_use_of_a_kept_sandbox_leaves_it(
    world: World, client: AsyncClient, pods: FakePodClient
) -> None:
    await world.template(name="python")
    await world.pool(replicas=1, name="python", template="python")
    kept = await client.sandbox(keep=True)

    async def use() -> None:
        await (await client.connect(kept.name)).run("echo hello")

    number = 1
    while await cancelled(use(), number):
        assert [each["metadata"]["name"] for each in await world.all(SANDBOX_CLAIM)] == [kept.name]
        assert all(session.closed for session in pods.sessions)
        number += 1
    assert number > 3
    await kept.release()


async def test_cancelled_map_leaves_no_claim(world: World, client: AsyncClient) -> None:
    await world.template(name="python")
    await world.pool(replicas=2, name="python", template="python")
    number = 1
    while await cancelled(client.map("input", [1, 2, 3], parallelism=2), number):
        assert await world.all(SANDBOX_CLAIM) == [], f"after await {number}"
        number += 1


class Lossy:
    """Loses the answers to the first creations of claims: they arrive, and the connection breaks."""

    def __init__(self, world: World, losses: int) -> None:
        self.inner = world.client.transport
        self.losses = losses
        self.created = 0

    async def request(self, request: Request) -> Any:
        answer = await self.inner.request(request)
        if request.method == "POST" and request.path.endswith("/sandboxclaims"):
            self.created += 1
            if self.created <= self.losses:
                raise ConnectionResetError("the answer was lost")
        return answer

    def stream(self, request: Request) -> Any:
        return self.inner.stream(request)

    async def close(self) -> None:
        await self.inner.close()


@pytest.mark.parametrize("options", [{}, {"key": "job"}, {"name": "mine", "keep": True}])
async def test_lost_answer_does_not_make_a_second_sandbox(
    world: World, service: Service, options: dict[str, Any]
) -> None:
    await world.template(name="python")
    await world.pool(replicas=1, name="python", template="python")
    lossy = Lossy(world, 1)
    service.client.transport = lossy
    client = AsyncClient(service=service)
    sandbox = await client.sandbox(**options)
    assert lossy.created == 1  # the second attempt is refused: the name is taken
    assert [each["metadata"]["name"] for each in await world.all(SANDBOX_CLAIM)] == [sandbox.name]
    await sandbox.release()
    assert await world.all(SANDBOX_CLAIM) == []
    await client.leases.close()
    await client._watch.close()


async def test_claim_whose_answers_are_all_lost_ends_with_its_lease(world: World, service: Service) -> None:
    await world.template(name="python")
    await world.pool(replicas=1, name="python", template="python")

    class Down(Lossy):
        async def request(self, request: Request) -> Any:
            if self.created:
                raise ConnectionResetError("the API is gone")
            return await super().request(request)

    plain = service.client.transport
    service.client.transport = Down(world, 1)
    client = AsyncClient(service=service)
    with pytest.raises(ServiceUnavailable):
        await client.sandbox()
    service.client.transport = plain
    (left,) = await world.all(SANDBOX_CLAIM)
    assert left["spec"]["lifecycle"]["shutdownPolicy"] == "Delete"
    assert left["metadata"]["name"] not in client.leases
    await client.leases.close()
    await client._watch.close()
