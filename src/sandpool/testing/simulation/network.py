"""The simulated network between one process and the API: slow, unreliable, and independent of the sender's life.

A request is delivered even if its sender is cancelled or killed meanwhile, perhaps after a successor has listed the
objects (a *late write*). Watch events arrive in order, each watch with its own lag, so caches are behind the API and
behind each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing
from contextvars import Context
from typing import Any, Protocol, cast

from sandpool.engine.logging import _context
from sandpool.kube.errors import ApiError, Forbidden
from sandpool.kube.transport import Request, Transport, WatchEvent
from sandpool.testing.simulation.api import WRITER
from sandpool.testing.simulation.network_faults import NetworkFaults, RequestOutcome
from sandpool.testing.simulation.trace import Trace


class _ProcessTransport:
    """The transport of one process on top of another, with callbacks around each of its writes."""

    def __init__(self, transport: Transport, trace: Trace, owner: str) -> None:
        self.transport = transport
        self.trace = trace
        self.owner = owner
        self.sent: Callable[[Request], None] = lambda request: None  # called when a write is in flight
        self.before: Callable[[str, Request], None] = lambda writer, request: None  # called before a write is sent
        self.after: Callable[[str, Request], None] = lambda writer, request: None  # called when the outcome is known
        self.writes = 0  # sent so far
        self.is_closed = False  # the process is gone: it sends and receives nothing

    def watch_writes(
        self,
        before: Callable[[str, Request], None],
        sent: Callable[[Request], None],
        after: Callable[[str, Request], None],
    ) -> None:
        self.before, self.sent, self.after = before, sent, after


class SimulatedTransport(_ProcessTransport):
    """A transport on top of another. ``owner`` names the writer, unless a controller's log context names it."""

    def __init__(self, transport: Transport, faults: NetworkFaults, trace: Trace, owner: str) -> None:
        super().__init__(transport, trace, owner)
        self.faults = faults
        self.stores_metadata_with_status: bool | None = None  # None: as ``transport`` does
        self._under_way: dict[asyncio.Task[Any], Request] = {}  # writes that are neither committed nor lost yet
        self._forwarders: dict[asyncio.Task[None], None] = {}

    @property
    def under_way(self) -> Iterable[Request]:
        return self._under_way.values()

    async def request(self, request: Request) -> Any:
        if self.is_closed:
            await _wait_forever()
        writer = _writer(self.owner)
        is_write = request.method != "GET"
        if is_write:
            self.writes += 1
            self.before(writer, request)
            if self.is_closed:
                await _wait_forever()
        self.trace.note(writer, f"-> {describe(request)}")
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        outside = Context()
        outside.run(WRITER.set, writer)
        delivery = asyncio.get_running_loop().create_task(self._deliver(writer, request, answer), context=outside)
        if is_write:
            self._under_way[delivery] = request
            delivery.add_done_callback(lambda task: self._under_way.pop(task, None))
            self.sent(request)
        return await answer

    async def _deliver(self, writer: str, request: Request, answer: asyncio.Future[Any]) -> None:
        faults = self.faults
        outcome = faults.outcome(request, asyncio.get_running_loop().time())
        await asyncio.sleep(faults.delay())
        if self.is_closed:
            await asyncio.sleep(faults.late_delay())
        result: Any = None
        error: Exception | None = None
        if outcome is RequestOutcome.REFUSED:
            error = faults.refusal(request)
        elif outcome is RequestOutcome.FORBIDDEN:
            error = Forbidden("exceeded quota: sandboxes")
        elif outcome is RequestOutcome.CUT:
            error = ConnectionError("the request was lost")
        else:
            try:
                result = await self.transport.request(request)
            except ApiError as refused:
                error = refused
            if outcome is RequestOutcome.LOST and error is None:
                error = faults.loss()
        if request.method != "GET":
            self.after(writer, request)
        await asyncio.sleep(faults.delay())
        if self.is_closed or answer.done():
            self.trace.note(writer, f"<- {describe(request)}: the sender is gone")
        elif error is not None:
            self.trace.note(writer, f"<- {describe(request)}: {outcome.name} {type(error).__name__} {error}")
            answer.set_exception(error)
        else:
            if request.method != "GET":
                self.trace.note(writer, f"<- {describe(request)}: {_version(result)}")
            answer.set_result(result)

    async def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        if self.is_closed:
            await _wait_forever()
        await asyncio.sleep(self.faults.delay())
        inbox: asyncio.Queue[WatchEvent | Exception | None] = asyncio.Queue()
        forwarder = asyncio.get_running_loop().create_task(self._forward_events(request, inbox), context=Context())
        self._forwarders[forwarder] = None
        forwarder.add_done_callback(lambda task: self._forwarders.pop(task, None))
        try:
            while True:
                event = await inbox.get()
                if event is None:
                    return
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            forwarder.cancel()

    async def _forward_events(self, request: Request, inbox: asyncio.Queue[WatchEvent | Exception | None]) -> None:
        faults = self.faults
        what = request.path.rpartition("/")[2]
        try:
            async with aclosing(cast(Any, self.transport.stream(request))) as events:
                async for event in events:
                    if stall := faults.stall():
                        await asyncio.sleep(stall)
                    if (end := faults.watch_end()) is not True:
                        self.trace.note(self.owner, f"watch of {what} ends: {end}")
                        inbox.put_nowait(cast(Exception | None, end))
                        return
                    inbox.put_nowait(event)
        except ApiError as error:
            inbox.put_nowait(error)
        else:
            inbox.put_nowait(None)

    def disconnect(self) -> None:
        """Disconnect a killed process. Requests that it has sent are still delivered."""
        self.is_closed = True
        for forwarder in list(self._forwarders):
            forwarder.cancel()

    async def close(self) -> None:
        self.disconnect()


class LocalTransport(_ProcessTransport):
    """A transport to an API in the same process: without delays and faults, and what it sends ends with the process.

    ``duration`` draws about how long a write takes, for a kill while it is under way.
    """

    def __init__(self, transport: Transport, trace: Trace, owner: str, duration: Callable[[], float]) -> None:
        super().__init__(transport, trace, owner)
        self.duration = duration

    async def request(self, request: Request) -> Any:
        if request.method == "GET":
            return await self.transport.request(request)
        writer = _writer(self.owner)
        self.writes += 1
        self.before(writer, request)
        if self.is_closed:
            await _wait_forever()
        self.trace.note(writer, f"-> {describe(request)}")
        asyncio.get_running_loop().call_later(self.duration(), self.sent, request, context=Context())
        token = WRITER.set(writer)
        result: Any = None
        error: ApiError | None = None
        try:
            result = await self.transport.request(request)
        except ApiError as refused:
            error = refused
        finally:
            WRITER.reset(token)
        self.after(writer, request)
        if self.is_closed:
            await _wait_forever()
        outcome = _version(result) if error is None else f"{type(error).__name__} {error}"
        self.trace.note(writer, f"<- {describe(request)}: {outcome}")
        if error is not None:
            raise error
        return result

    def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        return self.transport.stream(request)

    def disconnect(self) -> None:
        """Disconnect a killed process."""
        self.is_closed = True

    async def close(self) -> None:
        self.disconnect()


class ControllerTransport(Transport, Protocol):
    """The transport of one process of the controllers."""

    @property
    def writes(self) -> int:
        """The writes sent so far."""
        ...

    @property
    def under_way(self) -> Iterable[Request]:
        """Writes that are sent, and neither committed nor lost yet. They outlive the process."""
        ...

    def watch_writes(
        self,
        before: Callable[[str, Request], None],
        sent: Callable[[Request], None],
        after: Callable[[str, Request], None],
    ) -> None:
        """Set what is called before a write is sent, while it is in flight, and when its outcome is known."""
        ...

    def disconnect(self) -> None:
        """Disconnect a killed process."""
        ...


def _writer(owner: str) -> str:
    """The writer of the current task: ``owner``, unless the log context names a controller."""
    about = _context.get()
    return f"{about.get('controller')} {about.get('key')}" if about else owner


def describe(request: Request) -> str:
    """Describe a request in one line."""
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


async def _wait_forever() -> None:
    await asyncio.get_running_loop().create_future()
