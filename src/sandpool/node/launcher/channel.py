"""The agent's side of a socket through which processes are ordered: from the launcher, or from a porter."""

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
    """A process that was ordered. ``ended`` gives its wait status, or None if who has started it is gone and nobody can
    know; ``pidfd`` is readable when it has ended, either way."""

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self.ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    def close(self) -> None:
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


class _Waiting(NamedTuple):
    process: asyncio.Future[Child]
    since: float


class ProcessChannel:
    """``on_end`` is called when the other side is gone; to close this one then is up to the caller. ``on_idle`` is
    called when the last of what was ordered has ended, or could not be ordered. ``unwanted`` gets every process that
    is started after who asked for it has gone."""

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
        # By order: who waits for the process, or has waited and gone, and the processes whose end is not known.
        self._waiting: dict[int, _Waiting] = {}
        self._children: dict[int, Child] = {}
        self._loop = asyncio.get_running_loop()
        connection.setblocking(False)
        self._loop.add_reader(connection, self._receive)

    @property
    def pending(self) -> int:
        """How many were ordered that have not ended."""
        return len(self._waiting) + len(self._children)

    @property
    def unanswered_since(self) -> float:
        """When the first was ordered of those that were not begun; infinity if there are none."""
        return next((waiting.since for waiting in self._waiting.values()), math.inf)

    async def order(
        self,
        data: bytes,
        descriptors: Sequence[int],
        now: float = 0.0,
        on_sent: Callable[[], object] = lambda: None,
    ) -> Child:
        """``now`` is only kept for ``unanswered_since``; ``on_sent`` is called when the descriptors are needed no more,
        which is long before there is a process. Raises ``NoSuchCommand`` if there is no such program,
        ``RuntimeFailure`` if anything else is in the way, and ConnectionError if the order was not delivered and never
        will be."""
        number = next(self._numbers)
        waiting: asyncio.Future[Child] = self._loop.create_future()
        self._waiting[number] = _Waiting(waiting, now)
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
                self._unwanted(waiting.result())  # who asked was told of it in the moment in which they went
            raise

    def close(self, why: str, ended: int | None) -> None:
        """Who waits is told why in vain; of processes that have not ended this is the end as far as anybody knows."""
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
        except BlockingIOError:  # many at once: it takes one after the other
            return False
        return True

    async def _room(self, waiting: asyncio.Future[Child]) -> None:
        """Wait until something can be sent. Raises ConnectionError if it was closed instead."""
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
        number = answer["order"]
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
