"""``python -m sandpool.e2b DESCRIPTOR``: the E2B endpoint of ``sandpool up --e2b``, driven by its parent.

It is a process of its own, so that the traffic of its clients does not delay the control plane.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sandpool.e2b.endpoint import Endpoint
from sandpool.e2b.keys import ApiKeys
from sandpool.e2b.listener import serving as serving_endpoint
from sandpool.e2b.options import EndpointOptions
from sandpool.engine.clock import SystemClock
from sandpool.kube import kubeconfig
from sandpool.process import on_demand
from sandpool.service.service import Service


@asynccontextmanager
async def serving(settings: Mapping[str, Any], listening: list[socket.socket]) -> AsyncIterator[Awaitable[None]]:
    """Serve the endpoint of a home for the length of the block."""
    connection = kubeconfig.load(Path(settings["kubeconfig"])).of_program("e2b")
    options = EndpointOptions(settings["domain"], pool=settings["pool"])
    async with (
        Service.connect(connection) as service,
        Endpoint.opened(service.client, service.pods, ApiKeys(service.client), options, SystemClock()) as endpoint,
        serving_endpoint(endpoint, listening),
    ):
        yield endpoint.wait()


if __name__ == "__main__":
    on_demand.serve(int(sys.argv[1]), serving)
