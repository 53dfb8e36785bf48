"""A server of a home that runs on demand: a listening socket, and a process that the first connection starts.

Most homes run without any browser that looks at them. Until a client comes, such a server costs a socket: no import, no
process, no watch. The kernel keeps the first connection until the process accepts it. From then on the process is
replaced when it ends, and it ends when its parent ends.

The process parses what browsers and sandboxes send, so it is confined (``confinement``) before it reads any of it: it
has sockets, the descriptors of its parent, and the credential in its settings.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import uvloop

from sandpool.engine.clock import Clock
from sandpool.engine.logging import configure_logging, logging_settings
from sandpool.node.descriptors import readable
from sandpool.node.runtimes import seccomp
from sandpool.node.runtimes.seccomp import NoFilter
from sandpool.process.confinement import HostUser, confine, import_late_modules, unprivileged_user
from sandpool.process.control import ControlReceiver, ControlSender, sockets
from sandpool.process.supervisor import ProcessFailed, SupervisedProcess

_log = logging.getLogger(__name__)

_STOP_SECONDS: Final = 3.0
_BACKLOG: Final = 1024

#: Serves at listening sockets for the length of the block. Yields what to wait for: it ends only by a failure.
Serving = Callable[[list[socket.socket]], AbstractAsyncContextManager[Awaitable[None]]]
#: Reads everything that ``Serving`` needs of this machine, while files can be opened. Gets the settings of the parent
#: and the socket of its ``channel``, if it has one.
Prepare = Callable[[Mapping[str, Any], socket.socket | None], Serving]


@dataclass(frozen=True, slots=True)
class Program:
    """A module that calls ``serve``, and which of the users of confined processes it runs as."""

    name: str
    module: str
    child: int

    @property
    def user(self) -> HostUser:
        return unprivileged_user(self.child)


class OnDemandProcess:
    """``listen`` opens the socket, ``run`` waits for a client and then keeps the process running. ``settings`` returns
    what the process gets; its argument is how often the process was replaced. ``channel`` opens a socket for each
    process, through which the process asks for what it cannot open."""

    def __init__(
        self,
        program: Program,
        clock: Clock,
        rng: Random,
        settings: Callable[[int], Mapping[str, Any]],
        channel: Callable[[], socket.socket] | None = None,
    ) -> None:
        self.program = program
        self.name = name = program.name
        self.process = SupervisedProcess(name, ("-m", program.module), clock, rng)
        self.url = ""
        self._settings = settings
        self._channel = channel
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
        fields = {"settings": self._settings(self.process.restarts), "log": log, "user": list(self.program.user)}
        if self._channel is None:
            await control.send("begin", [self._socket.fileno()], **fields)
            return
        with self._channel() as channel:
            await control.send("begin", [self._socket.fileno(), channel.fileno()], **fields)


def serve(descriptor: int, prepare: Prepare, imported_late: Sequence[str] = ()) -> None:
    """Be the process: serve until the parent says so or is gone. Raises the failure of the server."""
    # Service managers signal all processes of a service. The parent has this one stop in order, and ends it if it ends.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    control = ControlReceiver(socket.socket(fileno=descriptor))
    message = control.receive_blocking()
    if message is None:
        return
    configure_logging(message.fields["log"]["form"], message.fields["log"]["level"])
    listening, *channel = sockets(message.descriptors)
    import_late_modules(imported_late)
    serving = prepare(message.fields["settings"], channel[0] if channel else None)
    try:
        confine(HostUser(*message.fields["user"]), seccomp.server_program)
    except (NoFilter, OSError) as error:
        sys.exit(f"this server does not run with privileges, and cannot give them up: {error}")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(control, [listening], serving))


async def _serve(control: ControlReceiver, listening: list[socket.socket], serving: Serving) -> None:
    async with serving(listening) as failing:
        control.ready()
        ending = asyncio.ensure_future(failing)
        receiving = asyncio.create_task(control.receive())
        await asyncio.wait((ending, receiving), return_when=asyncio.FIRST_COMPLETED)
        if ending.done():
            ending.result()
        if receiving.result() is None:
            os._exit(1)  # the parent is gone
        ending.cancel()
