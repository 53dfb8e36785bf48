"""A transport that a test can disturb."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sandpool.kube.errors import Conflict
from sandpool.kube.transport import Request, WatchEvent
from sandpool.testing.faulty_transport import Fault, FaultyTransport

REQUEST = Request("GET", "/a")


class Api:
    def __init__(self) -> None:
        self.arrived = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def request(self, request: Request) -> Any:
        self.arrived += 1
        await self.gate.wait()
        return {"path": request.path}

    async def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        yield WatchEvent("ADDED", {})

    async def close(self) -> None:
        self.gate.clear()


async def test_requests_pass_without_a_fault() -> None:
    api = Api()
    wire = FaultyTransport(api)
    assert await wire.request(REQUEST) == {"path": "/a"}
    assert [event.type async for event in wire.stream(REQUEST)] == ["ADDED"]
    assert wire.requests == [REQUEST]
    await wire.close()
    assert not api.gate.is_set()


@pytest.mark.parametrize(("fault", "arrives"), [(Fault.CUT, 0), (Fault.LOSE, 1)])
async def test_cut_and_lost_requests_raise_connection_errors(fault: Fault, arrives: int) -> None:
    api = Api()
    wire = FaultyTransport(api)
    wire.fault = lambda request: fault
    with pytest.raises(ConnectionError):
        await wire.request(REQUEST)
    assert api.arrived == arrives


async def test_injected_error_is_raised() -> None:
    wire = FaultyTransport(Api())
    wire.fault = lambda request: Conflict("no")
    with pytest.raises(Conflict):
        await wire.request(REQUEST)


async def test_held_request_does_not_return() -> None:
    api = Api()
    wire = FaultyTransport(api)
    wire.fault = lambda request: Fault.HOLD
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await wire.request(REQUEST)
    assert api.arrived == 0
    assert not wire.busy


async def test_transport_is_quiet_without_requests_under_way() -> None:
    api = Api()
    wire = FaultyTransport(api)
    await wire.quiet()
    api.gate.clear()
    asking = [asyncio.create_task(wire.request(REQUEST)) for _ in range(2)]
    await asyncio.sleep(0)
    waiting = asyncio.create_task(wire.quiet())
    await asyncio.sleep(0)
    assert not waiting.done()
    api.gate.set()
    await waiting
    assert not wire.busy
    await asyncio.gather(*asking)
