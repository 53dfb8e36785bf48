"""The agent's side of a socket through which processes are ordered: from the launcher, or from a porter."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from sandpool.node.descriptors import writable
from sandpool.node.launcher.messages import receive, send_order
from sandpool.node.runtimes.runtime import NoSuchCommand, RuntimeFailure


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


class Exchange:
    """``on_end`` is called when the other side is gone; to close this one then is up to the caller. ``unwanted`` gets
    every process that is started after who asked for it has gone."""

    def __init__(
        self, connection: socket.socket, on_end: Callable[[], None], unwanted: Callable[[Child], None] = Child.close
    ) -> None:
        self.connection = connection
        self._on_end = on_end
        self._unwanted = unwanted
        self._numbers = count(1)
        self._closed = False
        # By order: who waits for the process, and the processes whose end is not known.
        self._waiting: dict[int, asyncio.Future[Child]] = {}
        self._children: dict[int, Child] = {}
        self._loop = asyncio.get_running_loop()
        connection.setblocking(False)
        self._loop.add_reader(connection, self._receive)

    @property
    def pending(self) -> int:
        """How many were ordered that have not ended."""
        return len(self._waiting) + len(self._children)

    async def order(self, data: bytes, descriptors: Sequence[int]) -> Child:
        """Raises ``NoSuchCommand`` if there is no such program, ``RuntimeFailure`` if anything else is in the way, and
        ConnectionError if the order was not delivered and never will be."""
        number = next(self._numbers)
        waiting: asyncio.Future[Child] = self._loop.create_future()
        self._waiting[number] = waiting
        try:
            while not self._sent(number, data, descriptors):
                await self._room(waiting)
            return await waiting
        finally:
            self._waiting.pop(number, None)

    def close(self, why: str, ended: int | None) -> None:
        """Who waits is told why in vain; of processes that have not ended this is the end as far as anybody knows."""
        if self._closed:
            return
        self._closed = True
        if not self._loop.is_closed():
            self._loop.remove_reader(self.connection)
        self.connection.close()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(RuntimeFailure(why))
        for child in self._children.values():
            if not child.ended.done():
                child.ended.set_result(ended)
        self._children.clear()

    def _sent(self, number: int, data: bytes, descriptors: Sequence[int]) -> bool:
        try:
            send_order(self.connection, number, data, descriptors)
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
            if (child := self._children.pop(number, None)) is not None and not child.ended.done():
                child.ended.set_result(answer["ended"])
            return
        waiting = self._waiting.get(number)
        if "error" in answer:
            if waiting is not None and not waiting.done():
                kind = NoSuchCommand if answer["kind"] == NoSuchCommand.__name__ else RuntimeFailure
                waiting.set_exception(kind(answer["error"]))
            return
        child = self._children[number] = Child(answer["pid"], pidfd)
        if waiting is not None and not waiting.done():
            waiting.set_result(child)
        else:
            self._unwanted(child)
