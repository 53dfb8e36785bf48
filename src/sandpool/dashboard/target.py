"""The API that a dashboard shows, and what else is known about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandpool.kube.client import Client
from sandpool.kube.pod_client import PodClient
from sandpool.service.service import Service

#: The dashboard in the User-Agent of its requests.
PROGRAM: Final = "dashboard"


@dataclass(frozen=True, slots=True)
class DashboardTarget:
    """``title`` names the API to users. ``namespace`` is None for all namespaces. ``loopback`` tells whether browsers
    are on this machine, so that they can reach ports that are forwarded to its loopback interface."""

    client: Client
    pods: PodClient
    title: str
    namespace: str | None = None
    metrics_url: str | None = None
    audit_logs: Sequence[Path] = ()
    controller_logs: Sequence[Path] = ()
    loopback: bool = True

    def service(self, namespace: str) -> Service:
        """The operations on sandboxes in a namespace."""
        return Service(self.client, self.pods, namespace)
