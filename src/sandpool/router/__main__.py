"""``python -m sandpool.router DESCRIPTOR``: the data plane of ``sandpool up``, driven by its parent.

The process reads its settings, gives up its privileges (``process.confinement``), and only then reads bytes of clients
and sandboxes. It ends when its parent ends."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import socket
import sys
from random import Random

import uvloop

from sandpool.engine.clock import SystemClock
from sandpool.engine.logging import configure_logging
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.kube.client import Client
from sandpool.kube.connection import Connection
from sandpool.kube.http import HttpTransport
from sandpool.node.runtimes.seccomp import NoFilter
from sandpool.process.confinement import HostUser, confine, import_late_modules, limit_open_files
from sandpool.process.control import ControlReceiver, Message, sockets
from sandpool.router.broker import BrokerClient
from sandpool.router.data_plane import LocalDataPlane
from sandpool.router.router import TrustCheck
from sandpool.router.routes import PortRoutes
from sandpool.router.settings import RouterSettings

# A client's connection, one to a sandbox, and those that are kept for later requests.
_FILES_PER_CONNECTION = 4
_MORE_FILES = 1024
# Requests go through a socket of the parent, so this is only the name of the server in their Host header.
_API = "http://localhost"


class Worker:
    def __init__(self, control: ControlReceiver, settings: RouterSettings, trusts: TrustCheck) -> None:
        self.control = control
        self.settings = settings
        self.trusts = trusts
        self.listening: list[socket.socket] = []
        self._closing: set[asyncio.Task[None]] = set()

    async def run(self, channel: socket.socket) -> None:
        clock = SystemClock()
        broker = BrokerClient(channel)
        transport = HttpTransport(Connection(_API, connect=broker.connect_api))
        self.plane = LocalDataPlane(
            Client(transport, field_manager="router"),
            broker.dial,
            clock,
            Random(),
            MetricsRegistry(),
            authorizer=self.settings.authorizer(clock),
            trusts=self.trusts,
            options=self.settings.options,
            wake=broker.wake,
        )
        while (message := await self.control.receive()) is not None:
            if message.operation == "stop":
                await self.plane.stop(message.fields["grace"])
                await transport.close()
                return
            await self._perform(message)
        os._exit(1)  # the parent is gone

    async def _perform(self, message: Message) -> None:
        received = sockets(message.descriptors)
        match message.operation:
            case "listen":
                self.listening += received
                return
            case "begin":
                await self.plane.start(self.listening)
                for sock in self.listening:
                    sock.close()
                self.control.ready()
            case "gateway port":
                routes = PortRoutes.from_json(message.fields["routes"])
                await self.plane.set_gateway_port(message.fields["port"], received[0], routes)
            case "close gateway port":  # not awaited: requests in service may take a while
                closing = asyncio.create_task(self.plane.close_gateway_port(message.fields["port"]))
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
            case "connection":
                await self.plane.router.accept_forwarded(received.pop(), message.fields["granted"])
            case "metrics":
                await _send(received[0], self.plane.router.metrics.dump())
            case "quiesce":
                await _send(received[0], json.dumps(await self.plane.quiesce(message.fields["pods"])).encode())
        for sock in received:
            sock.close()


async def _send(to: socket.socket, data: bytes) -> None:
    with to:
        await asyncio.get_running_loop().sock_sendall(to, data)


def main(descriptor: int) -> None:
    # Service managers signal all processes of a service. The parent has this one stop in order, and ends it if it ends.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    control = ControlReceiver(socket.socket(fileno=descriptor))
    import_late_modules()
    gc.collect()
    gc.freeze()
    message = control.receive_blocking()
    if message is None:
        return
    configure_logging(message.fields["log"]["form"], message.fields["log"]["level"])
    settings = RouterSettings.from_json(message.fields["settings"])
    trusts = settings.trusts()
    limit_open_files(_FILES_PER_CONNECTION * settings.options.max_connections + _MORE_FILES)
    try:
        confine(HostUser(*message.fields["user"]))
    except (NoFilter, OSError) as error:
        sys.exit(f"the router does not run with privileges, and cannot give them up: {error}")
    (channel,) = sockets(message.descriptors)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(Worker(control, settings, trusts).run(channel))


if __name__ == "__main__":
    main(int(sys.argv[1]))
