"""``python -m sandpool.dashboard DESCRIPTOR``: the dashboard of ``sandpool up``, driven by its parent.

It is a process of its own, so that browsers cost the control plane nothing but watches.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from sandpool.dashboard.guard import GuardOptions
from sandpool.dashboard.server import Dashboard, DashboardOptions
from sandpool.dashboard.settings import DashboardSettings
from sandpool.dashboard.target import PROGRAM, DashboardTarget
from sandpool.engine.clock import SystemClock
from sandpool.kube import kubeconfig
from sandpool.kube.client import Client
from sandpool.kube.http import HttpTransport
from sandpool.kube.pod_client import HttpPodClient
from sandpool.process import on_demand


@asynccontextmanager
async def serving(document: Mapping[str, Any], listening: list[socket.socket]) -> AsyncIterator[Awaitable[None]]:
    """Serve the dashboard of a home for the length of the block."""
    settings = DashboardSettings.from_json(document)
    connection = kubeconfig.load(settings.kubeconfig).of_program(PROGRAM)
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
    yield dashboard.wait()
    await dashboard.stop()
    await client.close()


if __name__ == "__main__":
    on_demand.serve(int(sys.argv[1]), serving)
