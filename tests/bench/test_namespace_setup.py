"""The namespace of a run is deleted, and an interrupted run says where to look."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sandpool.bench.namespace_setup import Ground
from sandpool.kube.client import Client
from sandpool.kube.errors import NotFound
from sandpool.kube.transport import Request, WatchEvent
from sandpool.testing.clock import ManualClock


class Slow:
    """An API whose namespaces stay for a while after they were deleted, and in which there is nothing else."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.gone = False

    async def request(self, request: Request) -> Any:
        self.asked.append(f"{request.method} {request.path.rpartition('/')[2]}")
        if "sandboxwarmpools" in request.path or (request.method == "GET" and self.gone):
            raise NotFound("not there")
        return {}

    def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        raise NotImplementedError

    async def close(self) -> None: ...


async def use(api: Slow, clock: ManualClock, told: list[str]) -> None:
    async with Ground(Client(api), clock, "mine", "", told.append, remove=True):
        pass


async def test_cleanup_waits_until_the_namespace_is_gone() -> None:
    api, clock, told = Slow(), ManualClock(), list[str]()
    using = asyncio.create_task(use(api, clock, told))
    await clock.advance(5)
    assert not using.done()
    api.gone = True
    await clock.advance(5)
    await using
    assert api.asked[:3] == ["POST namespaces", "DELETE pool", "DELETE mine"]
    assert told == ["removing namespace mine"]


async def test_interrupted_cleanup_prints_how_to_check() -> None:
    api, clock, told = Slow(), ManualClock(), list[str]()
    using = asyncio.create_task(use(api, clock, told))
    await clock.advance(5)
    using.cancel()
    with pytest.raises(asyncio.CancelledError):
        await using
    assert told[-1] == "interrupted; see what is left with: kubectl get namespace mine"


async def test_namespace_that_is_not_deleted_is_an_error() -> None:
    api, clock = Slow(), ManualClock()
    using = asyncio.create_task(use(api, clock, []))
    await clock.advance(400)
    with pytest.raises(TimeoutError, match="namespace mine is being deleted and still there"):
        await using
