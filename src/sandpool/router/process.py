"""The data plane of the router as a supervised process without privileges (``sandpool.router``)."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Any, Final

from sandpool.engine.clock import Clock
from sandpool.engine.logging import logging_settings
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.process.confinement import unprivileged_user
from sandpool.process.control import ControlSender
from sandpool.process.supervisor import SupervisedProcess
from sandpool.router.broker import ConnectionBroker, MalformedRequest
from sandpool.router.data_plane import GatewayPort
from sandpool.router.metrics import RouterMetrics
from sandpool.router.settings import RouterSettings
from sandpool.router.upstream import Dial
from sandpool.router.waking import Wake

_log = logging.getLogger(__name__)

_MAX_METRICS_BYTES: Final = 16 << 20
_METRICS_SECONDS: Final = 5.0
_MAX_QUIESCE_BYTES: Final = 1 << 20
# Seconds beyond its grace period in which the process must end.
_STOP_SECONDS: Final = 3.0


def supervised(clock: Clock, rng: Random) -> SupervisedProcess:
    return SupervisedProcess("router", ("-m", "sandpool.router"), clock, rng)


class RouterProcess:
    """A ``DataPlane`` in a child of this process. ``process`` is of ``supervised`` and may have been spawned.

    ``dial`` connects to pods of the node in this process, ``connect_api`` opens a connection to the API server on which
    all requests are of the router's user. Both are used for the child, which can connect to nothing itself. ``wake``
    resumes sandboxes that sleep; None: requests to them are rejected."""

    def __init__(
        self,
        process: SupervisedProcess,
        dial: Dial,
        connect_api: Callable[[], Awaitable[socket.socket]],
        settings: RouterSettings,
        metrics: MetricsRegistry,
        wake: Wake | None = None,
    ) -> None:
        self.wake = wake
        self.process = process
        self.dial = dial
        self.connect_api = connect_api
        self.settings = settings
        self.metrics = RouterMetrics(metrics)
        metrics.refresh_with(self._refresh_metrics)
        self._listening: Sequence[socket.socket] = ()
        self._gateways: dict[int, GatewayPort] = {}
        self._brokers: set[asyncio.Task[None]] = set()

    async def start(self, listening: Sequence[socket.socket]) -> None:
        """Raises ``ProcessFailed``."""
        self._listening = listening
        await self.process.start(self._set_up)

    async def wait(self) -> None:
        await self.process.wait()

    async def set_gateway_ports(self, ports: Mapping[int, GatewayPort]) -> None:
        closed = self._gateways.keys() - ports.keys()
        self._gateways = dict(ports)
        with suppress(ConnectionError):  # the next process gets all of them
            for number in closed:
                await self.process.send("close gateway port", port=number)
            for number, port in self._gateways.items():
                await _send_gateway_port(self.process, number, port)

    async def connect_forwarded(self, granted: str) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                await self.process.send("connection", [theirs.fileno()], granted=granted)
            except BaseException:
                ours.close()
                raise
        ours.setblocking(False)
        return ours

    async def quiesce(self, pods: Mapping[str, float]) -> Mapping[str, float]:
        """Nothing that the process answers is trusted: it may only let pods sleep that it could leave alone anyway."""
        ours, theirs = socket.socketpair()
        with ours:
            ours.setblocking(False)
            with theirs:
                await self.process.send("quiesce", [theirs.fileno()], pods=dict(pods))
            return read_quiet(await _read(ours, _MAX_QUIESCE_BYTES), pods)

    async def stop(self, grace: float) -> None:
        with suppress(ConnectionError):
            await self.process.send("stop", grace=grace)
        await self.process.stop(grace + _STOP_SECONDS)
        for task in list(self._brokers):
            task.cancel()
        await asyncio.gather(*self._brokers, return_exceptions=True)

    async def _set_up(self, control: ControlSender) -> None:
        form, level = logging_settings()
        user = unprivileged_user()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        most = self.settings.options.max_connections
        broker = ConnectionBroker(ours, self.dial, self.connect_api, max_requests=most, wake=self.wake)
        self._start_broker(broker)
        with theirs:
            log = {"form": form, "level": level}
            await control.send("set up", [theirs.fileno()], user=list(user), log=log, settings=self.settings.to_json())
        for sock in self._listening:
            await control.send("listen", [sock.fileno()])
        for number, port in self._gateways.items():
            await _send_gateway_port(control, number, port)
        await control.send("begin")

    def _start_broker(self, broker: ConnectionBroker) -> None:
        task = asyncio.create_task(self._serve(broker), name="router: broker")
        self._brokers.add(task)
        task.add_done_callback(self._brokers.discard)
        task.add_done_callback(lambda _: broker.connection.close())  # also if it was cancelled before it began

    async def _serve(self, broker: ConnectionBroker) -> None:
        try:
            await broker.serve()
        except MalformedRequest as error:
            self.process.kill(f"a request for a connection is malformed: {error}")

    async def _refresh_metrics(self) -> None:
        """Read the metrics of the process. If that fails, those of the last time stay."""
        ours, theirs = socket.socketpair()
        with ours:
            ours.setblocking(False)
            try:
                with theirs:
                    await self.process.send("metrics", [theirs.fileno()])
                async with asyncio.timeout(_METRICS_SECONDS):
                    self.metrics.load(await _read(ours, _MAX_METRICS_BYTES))
            except (OSError, ValueError) as error:
                _log.warning("cannot read the metrics of the router process: %s", error)


async def _send_gateway_port(to: Any, number: int, port: GatewayPort) -> None:
    await to.send("gateway port", [port.listening.fileno()], port=number, routes=port.routes.to_json())


def read_quiet(data: bytes, pods: Mapping[str, float]) -> Mapping[str, float]:
    """Read an answer to "quiesce". Raises ``ValueError``."""
    try:
        answer = json.loads(data)
    except RecursionError:
        raise ValueError("its answer is nested too deeply") from None
    if not isinstance(answer, dict):
        raise ValueError("its answer is no JSON object")
    numbers = {uid: quiet for uid, quiet in answer.items() if isinstance(quiet, int | float)}
    try:
        return {uid: float(quiet) for uid, quiet in numbers.items() if uid in pods and quiet >= 0}
    except OverflowError:
        raise ValueError("its answer has a number that is too large") from None


async def _read(sock: socket.socket, most: int) -> bytes:
    """Read until the other end closes. Raises ``ValueError`` if there is more than ``most``."""
    loop = asyncio.get_running_loop()
    parts, size = [], 0
    while data := await loop.sock_recv(sock, 1 << 16):
        parts.append(data)
        size += len(data)
        if size > most:
            raise ValueError(f"it sent more than {most} bytes")
    return b"".join(parts)
