"""``python -m sandpool.e2b DESCRIPTOR``: the E2B endpoint of ``sandpool up --e2b``, driven by its parent.

It is a process of its own, so that the traffic of its clients does not delay the control plane, and a confined one
(``process.on_demand``), because it parses what clients and sandboxes send.
"""

from __future__ import annotations

import os
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
from sandpool.sdk import drivers
from sandpool.service.service import PARTS, Service


def prepare(settings: Mapping[str, Any], _: socket.socket | None) -> on_demand.Serving:
    """Make the endpoint of a home, while files can be read. It listens for ports of sandboxes in a directory of its
    own, which is its working directory: it need not be able to enter those above."""
    drivers.read_all()
    connection = kubeconfig.from_document(settings["kubeconfig"]).of_program("e2b")
    os.chdir(settings["directory"])
    options = EndpointOptions(settings["domain"], pool=settings["pool"], port_directory=Path())

    @asynccontextmanager
    async def serving(listening: list[socket.socket]) -> AsyncIterator[Awaitable[None]]:
        async with (
            Service.connect(connection) as service,
            Endpoint.opened(service.client, service.pods, ApiKeys(service.client), options, SystemClock()) as endpoint,
            serving_endpoint(endpoint, listening),
        ):
            yield endpoint.wait()

    return serving


if __name__ == "__main__":
    on_demand.serve(int(sys.argv[1]), prepare, PARTS)
