"""Lease renewals have their own flow in the API server."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator

import aiohttp
import pytest

from sandpool.api.kinds import LEASE, SANDBOX, SUBJECT_ACCESS_REVIEW
from sandpool.api.resource import ResourceType
from sandpool.cli.install import chosen
from sandpool.engine.clock import SystemClock
from sandpool.install import names
from sandpool.install.flow import FLOW_SCHEMA, PRIORITY_LEVEL
from sandpool.install.installer import Installer
from sandpool.install.manifests import InstallOptions
from sandpool.kube.client import Client
from sandpool.testing.objects import new
from sandpool.testing.waiting import until
from tests.support.installed_cluster import ACCOUNT, Cluster

pytestmark = pytest.mark.kubernetes

LEVELS = ResourceType(
    FLOW_SCHEMA.group, "v1", "PriorityLevelConfiguration", "prioritylevelconfigurations", namespaced=False
)


@pytest.fixture
async def installed(cluster: Cluster) -> Cluster:
    """Wait until the API server knows the roles: an earlier request would be denied, and denials fail the session."""
    objects = chosen(InstallOptions(), router=False, monitored=False)
    await Installer(cluster.client, SystemClock(), lambda line: None).install(objects)

    async def may_ask() -> bool:
        needs = (
            {
                "group": LEASE.group,
                "resource": "leases",
                "name": names.LEASE,
                "namespace": names.NAMESPACE,
                "verb": "get",
            },
            {"group": SANDBOX.group, "resource": "sandboxes", "verb": "list"},
            {"resource": "pods", "verb": "list"},
        )
        return all([await _is_allowed(cluster.client, need) for need in needs])

    await until(may_ask, within=60)
    return cluster


async def _is_allowed(client: Client, need: dict[str, str]) -> bool:
    review = new(SUBJECT_ACCESS_REVIEW, "", spec={"user": ACCOUNT, "resourceAttributes": need})
    return bool((await client.create(SUBJECT_ACCESS_REVIEW, review))["status"]["allowed"])


@pytest.fixture
async def controller(installed: Cluster) -> AsyncIterator[aiohttp.ClientSession]:
    """Requests as the service account of the controllers."""
    context = ssl.create_default_context(cadata=installed.plane.ca)
    async with aiohttp.ClientSession(
        installed.plane.url,
        connector=aiohttp.TCPConnector(ssl=context),
        headers={"Authorization": f"Bearer {await installed.token()}"},
    ) as session:
        yield session


async def queue_of(client: Client, session: aiohttp.ClientSession, path: str) -> tuple[str, str]:
    """The names of the flow schema and of the priority level that a request was put to."""
    async with session.get(path) as answer:
        flow, level = (answer.headers[f"X-Kubernetes-PF-{each}-UID"] for each in ("FlowSchema", "PriorityLevel"))
    return await _name(client, FLOW_SCHEMA, flow), await _name(client, LEVELS, level)


async def _name(client: Client, type: ResourceType, uid: str) -> str:
    (name,) = (
        each["metadata"]["name"] for each in (await client.list(type))["items"] if each["metadata"]["uid"] == uid
    )
    return str(name)


async def test_lease_requests_have_their_own_flow(installed: Cluster, controller: aiohttp.ClientSession) -> None:
    leases = f"/apis/{LEASE.api_version}/namespaces/{names.NAMESPACE}/leases/{names.LEASE}"

    async def is_apart() -> bool:  # an API server applies new schemas with a delay
        return await queue_of(installed.client, controller, leases) == (names.CONTROLLER_LEASE_FLOW, PRIORITY_LEVEL)

    await until(is_apart, within=60)
    for path in (f"/apis/{SANDBOX.api_version}/sandboxes?limit=1", "/api/v1/pods?limit=1"):
        assert await queue_of(installed.client, controller, path) == ("service-accounts", "workload-low")


async def test_flow_schema_is_accepted_by_the_api_server(installed: Cluster) -> None:
    """A schema with a missing priority level has the condition Dangling."""

    async def is_judged() -> bool:
        flow = await installed.client.get(FLOW_SCHEMA, names.CONTROLLER_LEASE_FLOW)
        conditions = {each["type"]: each["status"] for each in flow.get("status", {}).get("conditions", ())}
        return conditions == {"Dangling": "False"}

    await until(is_judged, within=60)
