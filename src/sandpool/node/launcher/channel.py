"""The agent's side of a socket to the launcher or an exec agent, through which it requests processes."""

from __future__ import annotations

import asyncio
import json
import math
import os
import socket
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Final, NamedTuple

from sandpool.node.descriptors import writable
from sandpool.node.launcher.messages import receive, send_request
from sandpool.node.runtimes.runtime import NoSuchCommand, NotExecutable, RuntimeFailure

_KINDS: Final = {kind.__name__: kind for kind in (NoSuchCommand, NotExecutable)}


class Child:
    """A started process. ``ended`` is its wait status, or None if the process that started it is gone and the status is
    lost. ``pidfd`` is readable once it has ended, in either case."""

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self.ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    def close(self) -> None:
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


class _PendingRequest(NamedTuple):
    process: asyncio.Future[Child]
    since: float


class ProcessChannel:
    """``on_end`` is called when the other side is gone; the callback closes this channel. ``on_idle`` is called when
    the last requested process has ended or failed to start. ``unwanted`` gets every process that is started after its
    caller was cancelled."""

    def __init__(
        self,
        connection: socket.socket,
        on_end: Callable[[], None],
        on_idle: Callable[[], None] = lambda: None,
        unwanted: Callable[[Child], None] = Child.close,
    ) -> None:
        self.connection = connection
        self._on_end = on_end
        self._on_idle = on_idle
        self._unwanted = unwanted
        self._numbers = count(1)
        self._closed = False
        # By request number: requests without a reply, whether the caller still waits or not, and running processes.
        self._waiting: dict[int, _PendingRequest] = {}
        self._children: dict[int, Child] = {}
        self._loop = asyncio.get_running_loop()
        connection.setblocking(False)
        self._loop.add_reader(connection, self._receive)

    @property
    def pending(self) -> int:
        """The number of requested processes that have not ended."""
        return len(self._waiting) + len(self._children)

    @property
    def unanswered_since(self) -> float:
        """The time of the oldest request without a reply; infinity if there is none."""
        return next((waiting.since for waiting in self._waiting.values()), math.inf)

    async def submit(
        self,
        data: bytes,
        descriptors: Sequence[int],
        now: float = 0.0,
        on_sent: Callable[[], object] = lambda: None,
    ) -> Child:
        """Request a process and wait until it is started.

        ``now`` is for ``unanswered_since``. ``on_sent`` is called when the descriptors are no longer needed, long
        before the process exists. Raises ``NoSuchCommand`` if the program does not exist, ``RuntimeFailure`` for any
        other failure, and ConnectionError if the request was not delivered and never will be."""
        number = next(self._numbers)
        waiting: asyncio.Future[Child] = self._loop.create_future()
        self._waiting[number] = _PendingRequest(waiting, now)
        try:
            while not self._sent(number, data, descriptors):
                await self._room(waiting)
            on_sent()
        except BaseException:
            self._waiting.pop(number, None)
            if not self._closed and not self.pending:
                self._on_idle()
            raise
        try:
            return await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled() and waiting.exception() is None:
                self._unwanted(waiting.result())  # started in the moment in which the caller was cancelled
            raise

    def close(self, why: str, ended: int | None) -> None:
        """Fail pending requests with ``why``, and report ``ended`` as the wait status of running processes."""
        if self._closed:
            return
        self._closed = True
        if not self._loop.is_closed():
            self._loop.remove_reader(self.connection)
        self.connection.close()
        for waiting, _ in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(RuntimeFailure(why))
        for child in self._children.values():
            if not child.ended.done():
                child.ended.set_result(ended)
        self._waiting.clear()
        self._children.clear()

    def _sent(self, number: int, data: bytes, descriptors: Sequence[int]) -> bool:
        try:
            send_request(self.connection, number, data, descriptors)
        except BlockingIOError:  # the socket buffer is full
            return False
        return True

    async def _room(self, waiting: asyncio.Future[Child]) -> None:
        """Wait until the socket is writable. Raises ConnectionError if the channel is closed instead."""
        room = asyncio.ensure_future(writable(self.connection.fileno()))
        try:
            await asyncio.wait((room, waiting), return_when=asyncio.FIRST_COMPLETED)
        finally:
            room.cancel()
        if waiting.done():
            raise ConnectionResetError("it was closed") from waiting.exception()

    def _receive(self) -> None:
        try:
            message, descriptors = receive(self.connection, 1)
        except BlockingIOError:
            return
        except ConnectionError:
            message, descriptors = b"", []
        if message:
            self._answered(json.loads(message), *descriptors)
        else:
            self._on_end()

    def _answered(self, answer: dict[str, Any], pidfd: int = -1) -> None:
        number = answer["request"]
        if "ended" in answer:
            child = self._children.pop(number)
            if not child.ended.done():
                child.ended.set_result(answer["ended"])
        elif "error" in answer:
            waiting, _ = self._waiting.pop(number)
            if not waiting.done():
                waiting.set_exception(_KINDS.get(answer["kind"], RuntimeFailure)(answer["error"]))
        else:
            waiting, _ = self._waiting.pop(number)
            child = self._children[number] = Child(answer["pid"], pidfd)
            if waiting.done():
                self._unwanted(child)
            else:
                waiting.set_result(child)
        if not self.pending:
            self._on_idle()
