"""The controllers as a Deployment runs them: separate processes with the service account, restarted when they end.

A task replaces the kubelet: it restarts a process that has ended, by itself or by a test, after a moment.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from sandpool.bench.child_process import Component
from sandpool.install import names
from sandpool.testing.waiting import until
from tests.support.aggregated_cluster import AggregatedApi
from tests.support.installed_cluster import Cluster

_PAUSE = 0.1  # seconds between two checks of the processes
_LEADING = b"leading: "


class Deployed:
    """Run ``replicas`` processes for the length of an ``async with``. ``server`` is the address at which they reach the
    API, by default that of the cluster; ``options`` are further flags. Without ``kept`` ended processes are not
    restarted."""

    account = names.CONTROLLER

    def __init__(
        self,
        cluster: Cluster,
        directory: Path,
        *,
        replicas: int = 1,
        server: str = "",
        options: Sequence[str] = (),
        kept: bool = True,
    ) -> None:
        self.cluster = cluster
        self.directory = directory
        self.server = server or cluster.plane.url
        self.options = options
        self.kept = kept
        self.restarts = 0
        self.replicas = [self._replica(number) for number in range(replicas)]

    async def __aenter__(self) -> Self:
        token = await self.cluster.token(self.account)
        self.cluster.plane.write_kubeconfig(self.kubeconfig, self.account, token=token, server=self.server)
        for replica in self.replicas:
            replica.start()
        self._keeping = asyncio.create_task(self._keep())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._keeping.cancel()
        await asyncio.gather(self._keeping, return_exceptions=True)
        for replica in self.replicas:
            await asyncio.to_thread(replica.stop, 20)

    def mark(self) -> list[int]:
        """Return the log positions of all processes."""
        return [replica.log.stat().st_size if replica.log.exists() else 0 for replica in self.replicas]

    async def leading(self, mark: Sequence[int] = ()) -> Component:
        """Wait until a process logs that it leads, after ``mark`` if given."""
        since = mark or [0 for _ in self.replicas]

        async def found() -> Component | None:
            for replica, begin in zip(self.replicas, since, strict=True):
                if replica.log.exists() and _LEADING in replica.log.read_bytes()[begin:]:
                    return replica
            return None

        leader = await until(found, within=90)
        assert leader is not None
        return leader

    def said(self) -> str:
        """Return the logs of all processes."""
        return "\n".join(replica.log.read_text() for replica in self.replicas if replica.log.exists())

    async def _keep(self) -> None:
        while self.kept:
            for replica in self.replicas:
                if not replica.running:
                    self.restarts += 1
                    replica.start()
            await asyncio.sleep(_PAUSE)

    @property
    def kubeconfig(self) -> Path:
        return self.directory / f"{self.account}.kubeconfig"

    def command(self, number: int) -> list[str | Path]:
        """The command line of a replica, without the options."""
        return [
            *(sys.executable, "-m", "sandpool.cli.main", "controller", "--kubeconfig", self.kubeconfig),
            *("--metrics-bind-address=0", "--health-probe-bind-address=0", "--log-format=text"),
            *("--leader-election-namespace", names.NAMESPACE),
        ]

    def _replica(self, number: int) -> Component:
        name = f"{self.account}-{number}"
        return Component(name, [*self.command(number), *self.options], self.directory / f"{name}.log")


class DeployedApi(Deployed):
    """The same for the storage ``aggregated``: `sandpool apiserver` with the port and the volume of ``api``.

    ``command`` is that of a copy with an empty volume, for any number but 0."""

    account = names.APISERVER

    def __init__(
        self,
        cluster: Cluster,
        directory: Path,
        api: AggregatedApi,
        *,
        server: str = "",
        options: Sequence[str] = (),
        kept: bool = True,
    ) -> None:
        self.api = api
        super().__init__(cluster, directory, server=server, options=options, kept=kept)

    def command(self, number: int) -> list[str | Path]:
        replaced = {self.api.kubeconfig: self.kubeconfig}
        if number:
            replaced[self.api.data_dir] = self.directory / f"volume-{number}"
        return [replaced.get(part, part) if isinstance(part, Path) else part for part in self.api.command()]
