"""``python -m sandpool.dashboard DESCRIPTOR``: the dashboard of ``sandpool up``, driven by its parent.

It is a process of its own, so that browsers cost the control plane nothing but watches, and a confined one
(``process.on_demand``), because it parses what sandboxes send.
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
from sandpool.process.handed_files import HandedFiles
from sandpool.sdk import drivers
from sandpool.service.service import PARTS


def prepare(document: Mapping[str, Any], channel: socket.socket | None) -> on_demand.Serving:
    """Make the dashboard of a home, while files can be read. ``channel`` hands out the audit log."""
    drivers.read_all()
    settings = DashboardSettings.from_json(document)
    connection = kubeconfig.from_document(settings.kubeconfig).of_program(PROGRAM)
    client = Client(HttpTransport(connection), field_manager="sandpool-dashboard")
    target = DashboardTarget(
        client,
        HttpPodClient(connection),
        settings.title,
        metrics_url=settings.metrics_url,
        audit_log=None if channel is None else HandedFiles(channel).lines,
    )
    guard = GuardOptions(settings.allowed_hosts, read_only=settings.read_only)
    options = DashboardOptions(settings.token, settings.not_before, guard)
    dashboard = Dashboard(target, options, SystemClock(), Random())

    @asynccontextmanager
    async def serving(listening: list[socket.socket]) -> AsyncIterator[Awaitable[None]]:
        await dashboard.start(listening)
        yield dashboard.wait()
        await dashboard.stop()
        await client.close()

    return serving


if __name__ == "__main__":
    on_demand.serve(int(sys.argv[1]), prepare, PARTS)
