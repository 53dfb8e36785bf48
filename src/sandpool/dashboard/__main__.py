"""``python -m sandpool.dashboard DESCRIPTOR``: the dashboard of ``sandpool up``, driven by its parent.

It is a process of its own, so that browsers cost the control plane nothing but watches. It ends when its parent ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from random import Random

import uvloop

from sandpool.dashboard.guard import GuardOptions
from sandpool.dashboard.server import Dashboard, DashboardOptions
from sandpool.dashboard.settings import DashboardSettings
from sandpool.dashboard.target import DashboardTarget
from sandpool.engine.clock import SystemClock
from sandpool.engine.logging import configure_logging
from sandpool.kube import kubeconfig
from sandpool.kube.client import Client
from sandpool.kube.http import HttpTransport
from sandpool.kube.pod_client import HttpPodClient
from sandpool.process.control import ControlReceiver, sockets


async def _serve(control: ControlReceiver, settings: DashboardSettings, listening: list[socket.socket]) -> None:
    connection = kubeconfig.load(settings.kubeconfig)
    client = Client(HttpTransport(connection), field_manager="sandpool-dashboard")
    target = DashboardTarget(
        client,
        HttpPodClient(connection),
        settings.title,
        metrics_url=settings.metrics_url,
        audit_logs=() if settings.audit_log is None else (settings.audit_log,),
    )
    guard = GuardOptions(settings.allowed_hosts, read_only=settings.read_only)
    options = DashboardOptions(settings.token, settings.not_before, guard)
    dashboard = Dashboard(target, options, SystemClock(), Random())
    await dashboard.start(listening)
    control.ready()
    ending = asyncio.create_task(dashboard.wait())
    receiving = asyncio.create_task(control.receive())
    await asyncio.wait((ending, receiving), return_when=asyncio.FIRST_COMPLETED)
    if ending.done():
        ending.result()
    if receiving.result() is None:
        os._exit(1)  # the parent is gone
    ending.cancel()
    await dashboard.stop()
    await client.close()


def main(descriptor: int) -> None:
    # Service managers signal all processes of a service. The parent has this one stop in order, and ends it if it ends.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    control = ControlReceiver(socket.socket(fileno=descriptor))
    message = control.receive_blocking()
    if message is None:
        return
    configure_logging(message.fields["log"]["form"], message.fields["log"]["level"])
    settings = DashboardSettings.from_json(message.fields["settings"])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(control, settings, sockets(message.descriptors)))


if __name__ == "__main__":
    main(int(sys.argv[1]))
