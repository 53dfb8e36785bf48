"""The agent's side of the launcher."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable

from sandpool.node.launcher.channel import Child, ProcessChannel
from sandpool.node.launcher.interpreter import sealed_interpreter
from sandpool.node.launcher.requests import LaunchRequest, encode


class LauncherClient:
    """Starts a launcher when it is first needed, and another one when that is gone."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._exchange: ProcessChannel | None = None

    @property
    def pid(self) -> int | None:
        """Of the launcher, if there is one."""
        return self._process.pid if self._process is not None else None

    async def launch(self, order: LaunchRequest, on_sent: Callable[[], object] = lambda: None) -> Child:
        """``on_sent`` as for ``Exchange.order``. Raises ``NoSuchCommand`` if there is no such program in the container,
        ``RuntimeFailure`` if anything else is in the way."""
        data = encode(order)
        while True:
            exchange = self._connection()
            try:
                return await exchange.order(data, order.stdio, on_sent=on_sent)
            except ConnectionError:  # it has not got this one; the next one will
                if exchange is self._exchange:
                    self._lost("the launcher is gone")

    def start(self) -> None:
        """Start the launcher now: before a process grows is the best time to fork from it."""
        self._connection()

    def close(self) -> None:
        """What was started lives on."""
        if self._exchange is not None:
            self._lost("the launcher was closed")

    def _connection(self) -> ProcessChannel:
        if self._exchange is not None:
            return self._exchange
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, sealed_interpreter(sys.executable) as python:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-m", "sandpool.node.launcher", str(theirs.fileno())],
                executable=python,
                env={},
                cwd="/",
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._exchange = ProcessChannel(ours, lambda: self._lost("the launcher is gone"))
        return self._exchange

    def _lost(self, why: str) -> None:
        assert self._exchange is not None and self._process is not None
        exchange, self._exchange = self._exchange, None
        process, self._process = self._process, None
        exchange.close(why, None)
        process.kill()  # it would go by itself when it gets to it
        process.wait()
