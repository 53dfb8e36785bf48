"""A cluster without processes: the embedded API in the place of kube-apiserver, and a client in that of its proxy."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest

from sandpool.api.kinds import API_SERVICE, CONFIG_MAP, CUSTOM_RESOURCE_DEFINITION, NAMESPACE, SANDPOOL
from sandpool.api.kinds import LEASE as LEASE_TYPE
from sandpool.api.resource import Object, ResourceType
from sandpool.engine.clock import SystemClock
from sandpool.engine.leaderelection import LeaseTiming
from sandpool.kube.client import MergePatch
from sandpool.kube.errors import NotFound
from sandpool.server.aggregated.aggregated_server import ServingOptions
from sandpool.server.aggregated.authentication_config import NAME
from sandpool.server.aggregated.authentication_config import NAMESPACE as SYSTEM
from sandpool.server.aggregated.process import AggregatedProcess, ApiServerOptions
from sandpool.server.aggregated.volume_record import VolumeRecord
from sandpool.server.api_server import ApiServer
from sandpool.server.serving.pki import Authority
from sandpool.testing.faulty_transport import Fault, FaultyTransport, no_fault
from sandpool.testing.objects import new
from sandpool.testing.waiting import until
from tests.support.api_objects import definition
from tests.support.custom_kinds import install

PROXY = "front-proxy-client"
LEASE = "lease"
SERVICE_NAME = "sandpool.agent-sandbox-system.svc"


class AggregatedResponse:
    def __init__(self, status: int, body: Any) -> None:
        self.status = status
        self.body = body


class Cluster:
    """``api`` stands for kube-apiserver, ``proxy_ca`` is what signs its client certificate towards us."""

    def __init__(self, api: ApiServer, directory: Path) -> None:
        self.api = api
        self.client = api.client()
        self.directory = directory
        self.proxy_ca = Authority(directory / "proxy-ca", SystemClock())
        self._stack = AsyncExitStack()
        self._seeds = count()

    async def prepare(self) -> None:
        await self.trust(self.proxy_ca)
        await self.client.create(NAMESPACE, new(NAMESPACE, "ns"))
        # The embedded API serves our kinds, too. Its garbage collector would find no owner of our pods.
        for type in SANDPOOL:
            await self.undefine(type)

    async def undefine(self, type: ResourceType) -> None:
        """Delete the definition of a kind, and wait until it is not served any more."""
        await self.client.delete(CUSTOM_RESOURCE_DEFINITION, type.group_resource)
        await until(lambda: self._is_gone(type))

    async def _is_gone(self, type: ResourceType) -> bool:
        try:
            await self.client.list(type)
        except NotFound:
            return True
        return False

    async def trust(self, ca: Authority) -> None:
        """Publish a CA as that of the proxy."""
        data = {
            "requestheader-client-ca-file": ca.ca_pem,
            "requestheader-allowed-names": f'["{PROXY}"]',
            "requestheader-username-headers": '["X-Remote-User"]',
            "requestheader-group-headers": '["X-Remote-Group"]',
            "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
        }
        try:
            await self.client.patch(CONFIG_MAP, NAME, MergePatch({"data": data}), SYSTEM)
        except NotFound:
            config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME, "namespace": SYSTEM}}
            await self.client.create(CONFIG_MAP, {**config, "data": data})

    async def serve_api_services(self) -> None:
        crd = definition(replace(API_SERVICE, list_kind="APIServiceList", singular="apiservice"))
        crd["metadata"]["annotations"] = {"api-approved.kubernetes.io": "unapproved, for a test"}
        await install(self.client, crd)

    async def process(self, data_dir: str = "data", **options: Any) -> AggregatedProcess:
        """Start a process; it is stopped at the end of the test."""
        serving = ServingOptions(self.directory / data_dir, "127.0.0.1", 0, (SERVICE_NAME,), **options)
        # The deadline is so long that no test depends on renewals.
        chosen = ApiServerOptions(serving, LEASE, "ns", terms=LeaseTiming(3600, 3000.0, 0.5))
        transport = self.api.client(name="aggregated").transport
        # Each gives its objects other UIDs.
        rng = Random(next(self._seeds))
        process = AggregatedProcess(transport, FaultyTransport(transport), SystemClock(), rng, chosen)
        await process.start()
        self._stack.push_async_callback(process.stop)
        return process

    async def crash(self, process: AggregatedProcess) -> None:
        """Stop a process without what it would tell the cluster at its end. Cut it off before: see ``cut_off``."""
        assert isinstance(process.voting, FaultyTransport)
        assert process.voting.fault is not no_fault
        await process.stop()

    async def remembers(self, process: AggregatedProcess) -> None:
        """Wait until the cluster knows the present revision of a process."""

        async def known() -> bool:
            record = VolumeRecord.read(await self.client.get(LEASE_TYPE, LEASE, "ns"))
            return record is not None and record.revision == process._store.revision

        await until(known)

    def cut_off(self, process: AggregatedProcess) -> None:
        """Let the process change its lease no more: as in the last moment before it is killed."""
        assert isinstance(process.voting, FaultyTransport)
        process.voting.fault = lambda request: Fault.CUT

    def snapshot(self, name: str, data_dir: str = "data") -> None:
        """Copy the volume of a process that has stopped."""
        shutil.copytree(self.directory / data_dir, self.directory / name)

    def proxy(self, process: AggregatedProcess, ca: Authority | None = None, name: str = PROXY) -> Proxy:
        """A proxy with a certificate of ``ca``, by default of the one that the cluster publishes."""
        identity = (ca or self.proxy_ca).client(name, name)
        server_ca = (process.options.serving.data_dir / "pki" / "ca.crt").read_text()
        tls = ssl.create_default_context(cadata=server_ca)
        tls.load_cert_chain(identity.certificate, identity.key)
        proxy = Proxy(process.port, tls)
        self._stack.push_async_callback(proxy.close)
        return proxy

    async def close(self) -> None:
        await self._stack.aclose()


class Proxy:
    """Forwards requests as kube-apiserver does."""

    def __init__(self, port: int, tls: ssl.SSLContext) -> None:
        self._base = f"https://127.0.0.1:{port}"
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls))

    async def __call__(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        user: str = "admin",
        groups: tuple[str, ...] = ("system:masters",),
        headers: Mapping[str, str] | None = None,
    ) -> AggregatedResponse:
        named = [("X-Remote-User", user), *(("X-Remote-Group", group) for group in groups), *(headers or {}).items()]
        async with self._session.request(
            method, self._base + path, json=body, headers=named, server_hostname=SERVICE_NAME
        ) as response:
            return AggregatedResponse(response.status, await response.json(content_type=None))

    async def close(self) -> None:
        await self._session.close()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    api = ApiServer(tmp_path / "api")
    await api.start()
    cluster = Cluster(api, tmp_path)
    await cluster.prepare()
    yield cluster
    await cluster.close()
    await api.stop()
