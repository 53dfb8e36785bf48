"""The agent's side of the launcher."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from itertools import count
from typing import Any

from sandpool.node.descriptors import writable
from sandpool.node.launcher.birth import in_memory
from sandpool.node.launcher.orders import LONGEST, Order, encode
from sandpool.node.runtimes.runtime import NoSuchCommand, RuntimeFailure


class Child:
    """A process the launcher has started. ``ended`` gives its wait status, or None if the launcher is gone and nobody
    can know; ``pidfd`` is readable when it has ended, either way."""

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self.ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    def close(self) -> None:
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


class LauncherClient:
    """Starts a launcher when it is first needed, and another one when that is gone."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        # By order: who waits for the process, and the processes whose end is not known.
        self._waiting: dict[int, asyncio.Future[Child]] = {}
        self._children: dict[int, Child] = {}

    @property
    def pid(self) -> int | None:
        """Of the launcher, if there is one."""
        return self._process.pid if self._process is not None else None

    async def launch(self, order: Order) -> Child:
        """Raises ``NoSuchCommand`` if there is no such program in the container, ``RuntimeFailure`` if anything else is
        in the way."""
        number = next(self._numbers)
        waiting: asyncio.Future[Child] = asyncio.get_running_loop().create_future()
        memory = in_memory(encode(order))
        try:
            self._waiting[number] = waiting
            await self._send(number, [memory, *order.stdio])
            return await waiting
        finally:
            os.close(memory)
            self._waiting.pop(number, None)

    def start(self) -> None:
        """Start the launcher now: before a process grows is the best time to fork from it."""
        self._connection()

    def close(self) -> None:
        """What was started lives on."""
        if self._socket is not None:
            self._lost("the launcher was closed")

    async def _send(self, number: int, descriptors: list[int]) -> None:
        while True:
            connection = self._connection()
            try:
                socket.send_fds(connection, [str(number).encode()], descriptors)
            except BlockingIOError:  # many at once: it takes one after the other
                await writable(connection.fileno())
            except ConnectionError:
                if connection is self._socket:
                    waiting = self._waiting.pop(number)  # it has not got this one; the next one will
                    self._lost("the launcher is gone")
                    self._waiting[number] = waiting
            else:
                return

    def _connection(self) -> socket.socket:
        if self._socket is not None:
            return self._socket
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-m", "sandpool.node.launcher", str(theirs.fileno())],
                env={},
                cwd="/",
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._socket = ours
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(ours, self._receive)
        return ours

    def _receive(self) -> None:
        assert self._socket is not None
        try:
            message, descriptors, _, _ = socket.recv_fds(self._socket, LONGEST, 1, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except ConnectionError:
            message, descriptors = b"", []
        if not message:
            self._lost("the launcher is gone")
            return
        self._answered(json.loads(message), *descriptors)

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
            child.close()  # who asked has gone; the cgroup still knows it

    def _lost(self, why: str) -> None:
        assert self._socket is not None and self._process is not None
        if not self._loop.is_closed():
            self._loop.remove_reader(self._socket)
        self._socket.close()
        self._process.kill()  # it would go by itself when it gets to it
        self._process.wait()
        self._socket = self._process = None
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(RuntimeFailure(why))
        for child in self._children.values():
            if not child.ended.done():
                child.ended.set_result(None)
        self._children.clear()
