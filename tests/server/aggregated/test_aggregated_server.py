"""The running server beside an API in the place of kube-apiserver, with a clock of its own."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from random import Random
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from sandpool.api.kinds import API_SERVICE, API_SERVICES
from sandpool.server.aggregated.aggregated_server import AggregatedServer, ServingOptions
from sandpool.server.aggregated.certificates import CHECK_SECONDS, ServingCertificate
from sandpool.server.serving.pki import Authority
from sandpool.server.store.journal import Journal
from sandpool.server.store.store import Store
from sandpool.testing.clock import ManualClock
from sandpool.testing.objects import new
from sandpool.testing.waiting import until
from tests.server.aggregated.conftest import SERVICE_NAME

if TYPE_CHECKING:
    from tests.server.aggregated.conftest import Cluster

NAMES = (SERVICE_NAME,)


class Running:
    """A server with certificates that were issued at the start of a ``ManualClock``."""

    def __init__(self, cluster: Cluster, server: AggregatedServer, clock: ManualClock) -> None:
        self.cluster = cluster
        self.server = server
        self.clock = clock

    async def published(self) -> list[x509.Certificate]:
        """The CAs that both APIServices have."""
        services = [await self.cluster.client.get(API_SERVICE, name) for name in API_SERVICES]
        bundles = [base64.b64decode(each["spec"].get("caBundle", "")) for each in services]
        first, second = (x509.load_pem_x509_certificates(each) if each else [] for each in bundles)
        return [each for each in first if each in second]

    async def served(self) -> x509.Certificate:
        """The certificate that a new connection gets; one of the published CAs has issued it."""
        pem = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", self.server.port))
        found = x509.load_pem_x509_certificate(pem.encode())
        assert any(_issued(found, each) for each in await self.published())
        return found

    async def check(self) -> None:
        """Advance to the next check of the certificates."""
        await self.clock.advance(CHECK_SECONDS)


@asynccontextmanager
async def running(cluster: Cluster, now: datetime) -> AsyncIterator[Running]:
    await cluster.serve_api_services()
    for name in API_SERVICES:
        await cluster.client.create(API_SERVICE, new(API_SERVICE, name, spec={"group": name.partition(".")[2]}))
    data_dir, clock = cluster.directory / "data", ManualClock(now)
    store = Store(Journal(data_dir))
    options = ServingOptions(data_dir, "127.0.0.1", 0, NAMES)
    server = AggregatedServer(cluster.api.client(name="aggregated"), store, clock, Random(1), options)
    found = Running(cluster, server, clock)
    try:
        await server.start()

        async def known() -> bool:
            return bool(await found.published())

        await until(known)
        yield found
    finally:
        await server.stop()
        await store.close()


async def test_running_server_renews_its_certificate(cluster: Cluster) -> None:
    pki = cluster.directory / "data" / "pki"
    ServingCertificate(pki, NAMES, ManualClock())
    expires = x509.load_pem_x509_certificate((pki / "server.crt").read_bytes()).not_valid_after_utc
    async with running(cluster, expires - timedelta(days=30, hours=18)) as there:
        before, trusted = await there.served(), await there.published()
        await there.check()
        assert await there.served() == before

        async def renewed() -> bool:
            await there.check()
            return await there.served() != before

        await until(renewed)
        assert (await there.served()).not_valid_after_utc > expires
        assert await there.published() == trusted, "the CA is the same"


async def test_running_server_replaces_its_ca(cluster: Cluster) -> None:
    pki, then = cluster.directory / "data" / "pki", ManualClock()
    ServingCertificate(pki, NAMES, then)
    async with running(cluster, Authority(pki, then).ca_expires - timedelta(days=400, hours=18)) as there:
        before, (old,) = await there.served(), await there.published()
        seen = [1]  # how many CAs were published, at each check

        async def replaced() -> bool:
            await there.check()
            trusted, used = await there.published(), await there.served()
            seen.append(len(trusted))
            return old not in trusted and used != before

        await until(replaced)
        assert max(seen) == 2, "both at first"


def _issued(certificate: x509.Certificate, ca: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(ca)
    except (InvalidSignature, ValueError):  # ValueError: the names differ
        return False
    return True
