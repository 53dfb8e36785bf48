"""Supervisor of a child process: starts it, restarts it with back-off when it ends, and forwards its log.

A child is a Python program that gets one descriptor, the socket of ``control``, no environment and no terminal. It has
a session of its own, so Ctrl-C reaches the parent alone, which stops the child in order. Everything else that a child
needs is sent by ``setup``, again for every start. The descriptors of listening sockets stay open in the parent: clients
that connect while no child runs wait for the next one.

The log of a child is a pipe. Its lines are cut to a bounded length and cleared of control characters, because a
compromised child must not write to the parent's terminal or log file.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any, Final

from sandpool.api.printable import printable
from sandpool.engine.clock import Clock
from sandpool.engine.ratelimit import Backoff
from sandpool.node.descriptors import readable
from sandpool.process.control import READY, ControlSender

_log = logging.getLogger(__name__)

_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 30.0
#: A child that has run for this many seconds has not failed in a row with its predecessor.
_HEALTHY_SECONDS: Final = 60.0
#: Seconds until a started child must be ready.
_START_SECONDS: Final = 60.0
_MAX_LINE: Final = 8192
_LOG_RATE: Final = 64 << 10
_LOG_BURST: Final = 1 << 20
_CHUNK: Final = 1 << 16
_INHERITED_ENVIRONMENT: Final = ("TZ",)  # the log has local times

#: Sends a new child what it needs to become ready.
Setup = Callable[[ControlSender], Awaitable[None]]


class ProcessFailed(Exception):
    """The child ended before it was ready."""


class SupervisedProcess:
    """``spawn`` starts the child without waiting for it, ``start`` returns when it is ready, and ``stop`` when it has
    ended. In between, a child that ends is replaced."""

    def __init__(self, name: str, program: Sequence[str], clock: Clock, rng: Random) -> None:
        self.name = name
        self.program = tuple(program)  # the arguments of Python before the descriptor
        self.clock = clock
        self.restarts = 0
        self._backoff: Backoff[None] = Backoff(rng, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE)
        self._run: _Run | None = None
        self._supervising: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The PID of the child, None while none runs."""
        return None if self._run is None else self._run.process.pid

    def spawn(self) -> None:
        """Start the child. It loads its modules while the caller prepares what it needs."""
        self._run = _Run(self.program)

    async def start(self, setup: Setup) -> None:
        """Have the child become ready by ``setup``, which is called again for every child that replaces it. Raises
        ``ProcessFailed``."""
        if self._run is None:
            self.spawn()
        assert self._run is not None
        try:
            await self._begin(self._run, setup)
        except BaseException:
            await self._discard()
            raise
        self._supervising = asyncio.create_task(self._supervise(setup), name=f"{self.name}: supervisor")

    async def send(self, operation: str, descriptors: Sequence[int] = (), **fields: Any) -> None:
        """Send a message to the child. Raises ``ConnectionError`` if none runs."""
        if self._run is None:
            raise ConnectionRefusedError(f"the {self.name} process is being restarted")
        await self._run.control.send(operation, descriptors, **fields)

    def kill(self, why: str) -> None:
        """Kill a child that misbehaves. Another replaces it."""
        if self._run is not None:
            _log.error("killing the %s process: %s", self.name, why)
            self._run.kill()

    async def wait(self) -> None:
        """Wait for the supervisor, which ends only by ``stop`` or a failure of its own."""
        assert self._supervising is not None
        await asyncio.wait([self._supervising])
        if not self._supervising.cancelled():
            self._supervising.result()

    async def stop(self, within: float) -> None:
        """Wait for the end of a child that was told to end. After ``within`` seconds kill it."""
        if self._supervising is not None:
            self._supervising.cancel()
            await asyncio.gather(self._supervising, return_exceptions=True)
        if self._run is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(within):
                    await self._run.ended()
        await self._discard()

    async def _supervise(self, setup: Setup) -> None:
        while (run := self._run) is not None:
            await run.ended()
            self._run = None
            if self.clock.monotonic() - run.ready_at >= _HEALTHY_SECONDS:
                self._backoff.forget(None)
            pause = self._backoff.next_delay(None)
            _log.error("the %s process ended (%s); restarting it in %.1f s", self.name, run.close(), pause)
            await self.clock.sleep(pause)
            self.restarts += 1
            self._run = replacement = _Run(self.program)
            with suppress(ProcessFailed):  # it has ended, which the next round handles
                await self._begin(replacement, setup)

    async def _begin(self, run: _Run, setup: Setup) -> None:
        ended = asyncio.ensure_future(run.ended())
        preparing = asyncio.ensure_future(_prepare(run, setup))
        try:
            await asyncio.wait((ended, preparing), timeout=_START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if preparing.done() and preparing.exception() is None:
                run.ready_at = self.clock.monotonic()
                return
            if preparing.done() and not isinstance(preparing.exception(), ConnectionError):
                preparing.result()
            why = "it ended" if ended.done() or preparing.done() else f"it was not ready within {_START_SECONDS:g} s"
            run.kill()
            await ended
            raise ProcessFailed(f"the {self.name} process could not start: {why}")
        finally:
            for task in (ended, preparing):
                task.cancel()
            await asyncio.gather(ended, preparing, return_exceptions=True)

    async def _discard(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.kill()
            await run.ended()
            run.close()


async def _prepare(run: _Run, setup: Setup) -> None:
    await setup(run.control)
    await run.ready.wait()


class _Run:
    """One child."""

    def __init__(self, program: Sequence[str]) -> None:
        self.ready = asyncio.Event()
        self.ready_at = float("inf")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        log, child_log = os.pipe2(os.O_CLOEXEC)
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-I", *program, str(theirs.fileno())],
                env={each: os.environ[each] for each in _INHERITED_ENVIRONMENT if each in os.environ},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=child_log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            os.close(log)
            raise
        finally:
            theirs.close()
            os.close(child_log)
        self.pidfd = os.pidfd_open(self.process.pid)
        self.control = ControlSender(ours)
        self.log = LogRelay(log)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(ours, self._receive)
        self._is_closed = False

    async def ended(self) -> None:
        if self._is_closed:
            return
        own = os.dup(self.pidfd)  # an event loop has one reader per descriptor, and several tasks may wait
        try:
            await readable(own)
        finally:
            os.close(own)

    def kill(self) -> None:
        if not self._is_closed:
            self.process.kill()

    def close(self) -> str:
        """Release an ended child and say how it ended."""
        self._is_closed = True
        code = self.process.wait()
        os.close(self.pidfd)
        self._loop.remove_reader(self.control.connection)
        self.control.close()
        self.log.close()
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def _receive(self) -> None:
        try:
            data = self.control.connection.recv(len(READY) + 1)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if data == READY:
            self.ready.set()
            return
        self._loop.remove_reader(self.control.connection)
        if data:  # no child of ours says anything else
            self.kill()


class LogRelay:
    """Copies lines from a pipe to standard error, at most ``_LOG_RATE`` bytes per second on average: the log may be a
    file. Lines beyond that are counted and dropped."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._rest = b""
        self._budget = float(_LOG_BURST)
        self._dropped = 0
        os.set_blocking(descriptor, False)
        self._loop = asyncio.get_running_loop()
        self._filled_at = self._loop.time()
        self._loop.add_reader(descriptor, self.copy)

    def close(self) -> None:
        """Copy what is left."""
        if self.descriptor >= 0:
            self._loop.remove_reader(self.descriptor)
            while self.copy():
                pass
            if self._rest:
                self._write([self._rest])
            os.close(self.descriptor)
            self.descriptor = -1

    def copy(self) -> bool:
        """Copy what has arrived; returns False if that was nothing."""
        try:
            data = os.read(self.descriptor, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(self.descriptor)
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _MAX_LINE:
            lines.append(self._rest)
            self._rest = b""
        self._write(lines)
        return True

    def _write(self, lines: Sequence[bytes]) -> None:
        now = self._loop.time()
        self._budget = min(self._budget + (now - self._filled_at) * _LOG_RATE, _LOG_BURST)
        self._filled_at = now
        for line in lines:
            if len(line) > self._budget:
                self._dropped += 1
                continue
            if self._dropped:
                _log.warning("dropped %d lines of the log of a child process, which writes too many", self._dropped)
                self._dropped = 0
            self._budget -= len(line) + 1
            sys.stderr.write(f"{log_line(line)}\n")
        sys.stderr.flush()


def log_line(line: bytes) -> str:
    """Return a line of a log without control characters, cut to a bounded length."""
    return printable(line[:_MAX_LINE].decode(errors="backslashreplace"), keep="\t")
