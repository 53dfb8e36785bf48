"""The dashboard of a home: a listening socket, and a process that is started by the first connection.

Most homes run without any browser that looks at them. Until one comes, the dashboard costs a socket: no import, no
process, no watch. The kernel keeps the first connection until the process accepts it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Final

from sandpool.dashboard.settings import DashboardSettings
from sandpool.engine.clock import Clock
from sandpool.engine.logging import logging_settings
from sandpool.node.descriptors import readable
from sandpool.process.control import ControlSender
from sandpool.process.supervisor import ProcessFailed, SupervisedProcess

_log = logging.getLogger(__name__)

_STOP_SECONDS: Final = 3.0
_BACKLOG: Final = 64


class DashboardProcess:
    """``listen`` opens the socket, ``run`` waits for a browser and then keeps the process running."""

    def __init__(self, clock: Clock, rng: Random, settings: Callable[[], DashboardSettings]) -> None:
        self.clock = clock
        self.process = SupervisedProcess("dashboard", ("-m", "sandpool.dashboard"), clock, rng)
        self.url = ""
        self._settings = settings
        self._socket: socket.socket | None = None

    def listen(self, host: str, port: int) -> None:
        """Open the socket. Raises ``OSError``."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        self._socket.setblocking(False)
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._socket.getsockname()[1]}"

    async def run(self) -> None:
        """Start the process once a browser connects, and replace it if it ends, until cancelled."""
        assert self._socket is not None
        await readable(self._socket.fileno())
        try:
            await self.process.start(self._set_up)
        except ProcessFailed as error:
            # The home is worth more than its dashboard.
            _log.error("%s; there is no dashboard until the next start", error)
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
        settings = self._settings()
        if self.process.restarts:  # the predecessor may have accepted codes that this process does not know
            settings = replace(settings, not_before=self.clock.now().timestamp())
        form, level = logging_settings()
        log = {"form": form, "level": level}
        await control.send("begin", [self._socket.fileno()], settings=settings.to_json(), log=log)
