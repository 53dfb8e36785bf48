"""A real Kubernetes with the storage ``aggregated``: `sandpool apiserver` as a process behind kube-apiserver.

There is no kube-proxy, so the Service has an external name instead of pods: kube-apiserver connects to it by name. All
other objects are those of an installation.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from sandpool.api.kinds import API_SERVICE, API_SERVICES, SANDBOX, SANDBOX_CLAIM, SERVICE
from sandpool.api.resource import Object
from sandpool.bench.child_process import Component, ReservedPort
from sandpool.install import apiserver, manifests, names
from sandpool.install.installer import type_of
from sandpool.install.workload import manifest
from sandpool.kube.client import ApplyPatch, Client
from sandpool.kube.errors import NotFound, ServiceUnavailable
from sandpool.testing.waiting import until
from tests.support.control_plane import ControlPlane
from tests.support.installed_cluster import account_token

_TIMEOUT = 90.0  # seconds


async def apply(client: Client, objects: Iterable[Object]) -> None:
    for each in objects:
        metadata = each["metadata"]
        await client.patch(
            type_of(each), metadata["name"], ApplyPatch(each), metadata.get("namespace"), field_manager="t", force=True
        )


async def _passed_on(client: Client) -> bool:
    """Whether requests are passed on: kube-apiserver learns of the condition by a watch, as we do."""
    try:
        for type in (SANDBOX, SANDBOX_CLAIM):
            await client.list(type, "default", limit=1)
    except (NotFound, ServiceUnavailable):
        return False
    return True


class AggregatedApi:
    """The process and its registration. ``start`` returns when kube-apiserver serves our kinds.

    Clients are those of an administrator of the cluster. The data directory outlives the process, like a volume.
    """

    def __init__(self, plane: ControlPlane, directory: Path, *, options: Sequence[str] = ()) -> None:
        self.plane = plane
        self.directory = directory
        self.data_dir = directory / "data"
        self.options = options
        self._port = ReservedPort()
        self._log = directory / "apiserver.log"
        self.process = self._component()

    async def start(self, client: Client) -> None:
        """Register and start the process."""
        await self.register(client)
        await self.run(client)
        await self.available(client)

    async def run(self, client: Client) -> None:
        """Start the process with the installed service account."""
        token = await account_token(client, names.APISERVER)
        self.plane.write_kubeconfig(self.kubeconfig, names.APISERVER, names.NAMESPACE, token=token)
        self.process.start()

    def close(self) -> None:
        """Stop the process and release its port."""
        self.process.stop(30)
        self._port.close()

    async def register(self, client: Client) -> None:
        """Install everything but the workload."""
        await apply(client, [manifests.namespace(), *apiserver.permissions(), *self.registration()])

    def registration(self) -> list[Object]:
        """The Service and the APIServices."""
        port = self._port.number
        service = manifest(
            SERVICE,
            names.APISERVER,
            names.NAMESPACE,
            spec={"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]},
        )
        registered = [
            {**each, "spec": {**each["spec"], "service": {**each["spec"]["service"], "port": port}}}
            for each in apiserver.api_services()
        ]
        return [service, *registered]

    async def available(self, client: Client, expected: bool = True) -> None:
        """Wait until kube-apiserver passes requests on to the process, or does no longer."""

        async def found() -> bool:
            if expected and self.said() and not self.process.running:
                raise AssertionError(f"the process ended:\n{self.said()}")
            for name in API_SERVICES:
                status = (await client.get(API_SERVICE, name)).get("status") or {}
                conditions = {each["type"]: each["status"] for each in status.get("conditions") or ()}
                if (conditions.get("Available") == "True") is not expected:
                    return False
            return not expected or await _passed_on(client)

        await until(found, within=_TIMEOUT)

    def said(self) -> str:
        """Return the log of all runs."""
        return self._log.read_text() if self._log.exists() else ""

    @property
    def port(self) -> int:
        return self._port.number

    @property
    def kubeconfig(self) -> Path:
        return self.directory / "apiserver.kubeconfig"

    def command(self) -> list[str | Path]:
        """The command line of the process."""
        return [
            *(sys.executable, "-m", "sandpool.cli.main", "apiserver", "--kubeconfig", self.kubeconfig),
            *("--data-dir", self.data_dir, f"--secure-port={self._port.number}", "--bind-address=127.0.0.1"),
            *("--metrics-bind-address=0", "--health-probe-bind-address=0", "--log-format=text"),
            *("--leader-election-namespace", names.NAMESPACE),
            *self.options,
        ]

    def _component(self) -> Component:
        return Component("apiserver", self.command(), self._log)
