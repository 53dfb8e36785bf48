"""A server of a home that runs on demand: a listening socket, and a process that the first connection starts.

Most homes run without any browser that looks at them. Until a client comes, such a server costs a socket: no import, no
process, no watch. The kernel keeps the first connection until the process accepts it. From then on the process is
replaced when it ends, and it ends when its parent ends.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from random import Random
from typing import Any, Final

import uvloop

from sandpool.engine.clock import Clock
from sandpool.engine.logging import configure_logging, logging_settings
from sandpool.node.descriptors import readable
from sandpool.process.control import ControlReceiver, ControlSender, sockets
from sandpool.process.supervisor import ProcessFailed, SupervisedProcess

_log = logging.getLogger(__name__)

_STOP_SECONDS: Final = 3.0
_BACKLOG: Final = 1024

#: Serves with the settings of the parent at listening sockets, for the length of the block. Yields what to wait for: it
#: ends only by a failure.
Serving = Callable[[Mapping[str, Any], list[socket.socket]], AbstractAsyncContextManager[Awaitable[None]]]


class OnDemandProcess:
    """``listen`` opens the socket, ``run`` waits for a client and then keeps the process running. ``settings`` returns
    what the process gets; its argument is how often the process was replaced."""

    def __init__(
        self, name: str, module: str, clock: Clock, rng: Random, settings: Callable[[int], Mapping[str, Any]]
    ) -> None:
        self.name = name
        self.process = SupervisedProcess(name, ("-m", module), clock, rng)
        self.url = ""
        self._settings = settings
        self._socket: socket.socket | None = None

    def listen(self, host: str, port: int, *, replaceable: bool) -> None:
        """Open the socket; a ``replaceable`` port that is taken becomes another one. Raises ``OSError``."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not replaceable:
                raise
            self._socket = socket.create_server((host, 0), family=family, backlog=_BACKLOG)
        self._socket.setblocking(False)
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._socket.getsockname()[1]}"

    async def run(self) -> None:
        """Start the process once a client connects, and replace it if it ends, until cancelled."""
        assert self._socket is not None
        await readable(self._socket.fileno())
        try:
            await self.process.start(self._set_up)
        except ProcessFailed as error:
            # The home is worth more than this server.
            _log.error("%s; there is no %s until the next start", error, self.name)
            await asyncio.get_running_loop().create_future()
        await self.process.wait()

    async def stop(self) -> None:
        with suppress(ConnectionError):
            await self.process.send("stop")
        await self.process.stop(_STOP_SECONDS)
        if self._socket is not None:
            self._socket.close()

    async def _set_up(self, control: ControlSender) -> None:
        assert self._socket is not None
        form, level = logging_settings()
        log = {"form": form, "level": level}
        settings = self._settings(self.process.restarts)
        await control.send("begin", [self._socket.fileno()], settings=settings, log=log)


def serve(descriptor: int, serving: Serving) -> None:
    """Be the process: serve until the parent says so or is gone. Raises the failure of the server."""
    # Service managers signal all processes of a service. The parent has this one stop in order, and ends it if it ends.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    control = ControlReceiver(socket.socket(fileno=descriptor))
    message = control.receive_blocking()
    if message is None:
        return
    configure_logging(message.fields["log"]["form"], message.fields["log"]["level"])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(control, message.fields["settings"], sockets(message.descriptors), serving))


async def _serve(
    control: ControlReceiver, settings: Mapping[str, Any], listening: list[socket.socket], serving: Serving
) -> None:
    async with serving(settings, listening) as failing:
        control.ready()
        ending = asyncio.ensure_future(failing)
        receiving = asyncio.create_task(control.receive())
        await asyncio.wait((ending, receiving), return_when=asyncio.FIRST_COMPLETED)
        if ending.done():
            ending.result()
        if receiving.result() is None:
            os._exit(1)  # the parent is gone
        ending.cancel()
