"""The API that a dashboard shows, and what else is known about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from sandpool.kube.client import Client
from sandpool.kube.pod_client import PodClient
from sandpool.service.service import Service

#: The dashboard in the User-Agent of its requests.
PROGRAM: Final = "dashboard"


@dataclass(frozen=True, slots=True)
class DashboardTarget:
    """``title`` names the API to users. ``namespace`` is None for all namespaces. ``audit_log`` returns the lines of
    the audit log, and raises ``OSError``. ``loopback`` tells whether browsers are on this machine, so that they can
    reach ports that are forwarded to its loopback interface."""

    client: Client
    pods: PodClient
    title: str
    namespace: str | None = None
    metrics_url: str | None = None
    audit_log: Callable[[], Iterator[bytes]] | None = None
    loopback: bool = True

    def service(self, namespace: str) -> Service:
        """The operations on sandboxes in a namespace."""
        return Service(self.client, self.pods, namespace)
