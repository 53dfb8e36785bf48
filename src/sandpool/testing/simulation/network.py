"""The network between one process and the API: slow, unreliable, and not impressed by the death of who has sent.

A request travels on its own. Whoever sent it may be cancelled or killed meanwhile; it arrives all the same, perhaps
when a successor has already looked at the world (a *zombie* write). Events of a watch arrive in their order, each watch
with a lag of its own, so caches are behind the API and behind each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from contextvars import Context
from typing import Any, cast

from sandpool.engine.logging import _context
from sandpool.kube.errors import ApiError, Forbidden
from sandpool.kube.transport import Request, Transport, WatchEvent
from sandpool.testing.simulation.api import WRITER
from sandpool.testing.simulation.network_faults import Fate, Weather
from sandpool.testing.simulation.trace import Trace


class SimulatedWire:
    """A transport on top of another. ``owner`` is whose wire it is; of controllers it is known which of them writes."""

    def __init__(self, transport: Transport, weather: Weather, trace: Trace, owner: str) -> None:
        self.transport = transport
        self.weather = weather
        self.trace = trace
        self.owner = owner
        self.stores_metadata_with_status: bool | None = None  # None: as ``transport`` does
        self.sent: Callable[[Request], None] = lambda request: None  # told when a write is on its way
        self.before: Callable[[str, Request], None] = lambda writer, request: None  # told of every write that is sent
        self.after: Callable[[str, Request], None] = lambda writer, request: None  # told when its fate is sealed
        self.under_way: dict[asyncio.Task[Any], Request] = {}  # writes that have not been carried out or lost yet
        self.writes = 0  # that were sent
        self.is_cut = False  # the process is gone: nothing is sent or heard any more
        self._pumps: dict[asyncio.Task[None], None] = {}

    async def request(self, request: Request) -> Any:
        if self.is_cut:
            await _for_ever()
        writer = self._writer()
        is_write = request.method != "GET"
        if is_write:
            self.writes += 1
            self.before(writer, request)
            if self.is_cut:
                await _for_ever()
        self.trace.note(writer, f"-> {describe(request)}")
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        outside = Context()
        outside.run(WRITER.set, writer)
        carried = asyncio.get_running_loop().create_task(self._carry(writer, request, answer), context=outside)
        if is_write:
            self.under_way[carried] = request
            carried.add_done_callback(lambda task: self.under_way.pop(task, None))
            self.sent(request)
        return await answer

    async def _carry(self, writer: str, request: Request, answer: asyncio.Future[Any]) -> None:
        weather = self.weather
        fate = weather.fate(request, asyncio.get_running_loop().time())
        await asyncio.sleep(weather.delay())
        if self.is_cut:
            await asyncio.sleep(weather.limbo())
        result: Any = None
        error: Exception | None = None
        if fate is Fate.REFUSED:
            error = weather.refusal(request)
        elif fate is Fate.FORBIDDEN:
            error = Forbidden("exceeded quota: sandboxes")
        elif fate is Fate.CUT:
            error = ConnectionError("the request was lost")
        else:
            try:
                result = await self.transport.request(request)
            except ApiError as refused:
                error = refused
            if fate is Fate.LOST and error is None:
                error = weather.loss()
        if request.method != "GET":
            self.after(writer, request)
        await asyncio.sleep(weather.delay())
        if self.is_cut or answer.done():
            self.trace.note(writer, f"<- {describe(request)}: nobody listens")
        elif error is not None:
            self.trace.note(writer, f"<- {describe(request)}: {fate.name} {type(error).__name__} {error}")
            answer.set_exception(error)
        else:
            if request.method != "GET":
                self.trace.note(writer, f"<- {describe(request)}: {_version(result)}")
            answer.set_result(result)

    async def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        if self.is_cut:
            await _for_ever()
        await asyncio.sleep(self.weather.delay())
        inbox: asyncio.Queue[WatchEvent | Exception | None] = asyncio.Queue()
        pump = asyncio.get_running_loop().create_task(self._pump(request, inbox), context=Context())
        self._pumps[pump] = None
        pump.add_done_callback(lambda task: self._pumps.pop(task, None))
        try:
            while True:
                event = await inbox.get()
                if event is None:
                    return
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            pump.cancel()

    async def _pump(self, request: Request, inbox: asyncio.Queue[WatchEvent | Exception | None]) -> None:
        weather = self.weather
        what = request.path.rpartition("/")[2]
        try:
            async with aclosing(cast(Any, self.transport.stream(request))) as events:
                async for event in events:
                    if stall := weather.stall():
                        await asyncio.sleep(stall)
                    if (end := weather.watch_end()) is not True:
                        self.trace.note(self.owner, f"the watch of {what} ends: {end}")
                        inbox.put_nowait(cast(Exception | None, end))
                        return
                    inbox.put_nowait(event)
        except ApiError as error:
            inbox.put_nowait(error)
        else:
            inbox.put_nowait(None)

    def cut(self) -> None:
        """The process is gone. What it has sent arrives, nothing else happens any more."""
        self.is_cut = True
        for pump in list(self._pumps):
            pump.cancel()

    async def close(self) -> None:
        self.cut()

    def _writer(self) -> str:
        about = _context.get()
        return f"{about.get('controller')} {about.get('key')}" if about else self.owner


def describe(request: Request) -> str:
    """A request in a line."""
    path = request.path.partition("/namespaces/")[2].partition("/")[2] or request.path
    body = request.body if isinstance(request.body, dict) else {}
    metadata = body.get("metadata") or {}
    name = metadata.get("name", "") if request.method == "POST" else ""
    version = metadata.get("resourceVersion") or (body.get("preconditions") or {}).get("resourceVersion")
    text = f"{request.method} {path}" + (f"/{name}" if name else "") + (f" @{version}" if version else "")
    if owners := metadata.get("ownerReferences"):
        text += " owner " + ",".join(f"{each['kind']}/{each['name']}" for each in owners)
    return text


def _version(answer: Any) -> str:
    metadata = answer.get("metadata") or {} if isinstance(answer, dict) else {}
    return f"@{metadata['resourceVersion']}" if metadata.get("resourceVersion") else "done"


async def _for_ever() -> None:
    await asyncio.get_running_loop().create_future()
