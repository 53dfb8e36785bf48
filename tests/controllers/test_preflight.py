"""Missing kinds and permissions are reported with advice, and only needed ones are checked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from sandpool.api.conditions import is_ready
from sandpool.api.kinds import (
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    NETWORK_POLICY,
    POD,
    SANDBOX,
    SANDBOX_CLAIM,
    SANDBOX_TEMPLATE,
    SANDBOX_WARM_POOL,
    SERVICE,
)
from sandpool.api.names import network_policy_name
from sandpool.api.resource import Object, ResourceType
from sandpool.api.sandbox import SUSPENDED
from sandpool.controllers.leader import ControllerProcess
from sandpool.controllers.preflight import OPTIONAL_PERMISSIONS, REQUIRED_PERMISSIONS, find_missing
from sandpool.engine.clock import SystemClock
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.engine.transports import REQUESTS, MeasuredTransport
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import ApiError, Forbidden, NotFound, Unauthorized
from sandpool.node.simulated import SimulatedNode
from sandpool.server.api_server import ApiServer
from sandpool.server.request.messages import User
from sandpool.testing.faulty_transport import Fault, FaultyTransport
from sandpool.testing.objects import new, pod_template
from sandpool.testing.waiting import until

ROBOT = User("robot")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    server = ApiServer(tmp_path)
    await server.start()
    yield server
    await server.stop()


async def grant(server: ApiServer, rules: list[Object]) -> None:
    client = server.client()
    await client.create(CLUSTER_ROLE, new(CLUSTER_ROLE, "robot", rules=rules))
    reference = {"apiGroup": CLUSTER_ROLE.group, "kind": "ClusterRole", "name": "robot"}
    subjects = [{"apiGroup": CLUSTER_ROLE.group, "kind": "User", "name": ROBOT.name}]
    await client.create(CLUSTER_ROLE_BINDING, new(CLUSTER_ROLE_BINDING, "robot", roleRef=reference, subjects=subjects))


def rules() -> list[Object]:
    return [
        {
            "apiGroups": [need.type.group],
            "resources": [f"{need.type.plural}/{need.subresource}" if need.subresource else need.type.plural],
            "verbs": list(need.verbs),
        }
        for need in (*REQUIRED_PERMISSIONS, *OPTIONAL_PERMISSIONS)
    ]


async def test_administrator_has_all_permissions(server: ApiServer) -> None:
    assert await find_missing(server.client()) == ""
    assert await find_missing(server.client(), "default") == ""


async def test_missing_kinds_are_reported_with_the_command_that_installs_them(server: ApiServer) -> None:
    wire = FaultyTransport(server.client().transport)

    def absent(request: object) -> Exception | None:
        return NotFound("no such thing") if "sandboxwarmpools" in str(request) else None

    wire.fault = absent
    assert await find_missing(Client(wire)) == (
        "the API does not serve sandboxwarmpools.extensions.agents.x-k8s.io: `sandpool install` brings what is "
        "missing, and so does kubectl apply --server-side -f deploy/lean"
    )


async def test_missing_permissions_are_reported_together(server: ApiServer) -> None:
    few = [
        rule | {"verbs": [verb for verb in rule["verbs"] if verb not in ("create", "delete")]}
        for rule in rules()
        if rule["resources"] != ["sandboxclaims/status"]
    ]
    await grant(server, few)
    assert await find_missing(server.client(ROBOT)) == (
        "these permissions are missing, to be granted by a ClusterRole: "
        "create, delete sandboxes.agents.x-k8s.io; "
        "delete sandboxclaims.extensions.agents.x-k8s.io; "
        "patch sandboxclaims.extensions.agents.x-k8s.io/status; "
        "create, delete pods; create, delete services; create persistentvolumeclaims; "
        "create, delete networkpolicies.networking.k8s.io; create events.events.k8s.io"
    )


async def test_optional_permissions_are_not_reported(server: ApiServer) -> None:
    await grant(server, [rule for rule in rules() if rule["resources"] != ["nodes"]])
    assert await find_missing(server.client(ROBOT)) == ""


async def test_missing_lease_permissions_are_reported(server: ApiServer) -> None:
    await grant(server, rules())
    assert await find_missing(server.client(ROBOT), lease_namespace="default") == (
        "these permissions are missing, to be granted by a Role in the namespace default: "
        "get, create, patch leases.coordination.k8s.io"
    )
    assert await find_missing(server.client(), lease_namespace="default") == ""


async def test_permission_for_the_named_lease_is_enough(server: ApiServer) -> None:
    vote = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    named = {**vote, "verbs": ["get", "patch"], "resourceNames": ["ours"]}
    await grant(server, [*rules(), {**vote, "verbs": ["create"]}, named])
    assert await find_missing(server.client(ROBOT), lease_namespace="default", lease="ours") == ""
    assert await find_missing(server.client(ROBOT), lease_namespace="default", lease="theirs") == (
        "these permissions are missing, to be granted by a Role in the namespace default: "
        "get, patch leases.coordination.k8s.io"
    )


async def test_role_is_enough_for_one_namespace(server: ApiServer) -> None:
    assert (await find_missing(server.client(ROBOT), "default")).startswith(
        "these permissions are missing, to be granted by a Role in the namespace default: get, list, watch, create"
    )


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault.CUT, "the connection is cut"),
        (Unauthorized("Unauthorized"), "the API does not know these credentials: check the kubeconfig, or the service"),
        (ApiError("etcd is away"), "the API refused to say what it has: etcd is away"),
        (Forbidden("not for you"), "the API refused to say what it has: not for you"),
    ],
)
async def test_unreachable_api_is_reported(server: ApiServer, fault: Fault | Exception, said: str) -> None:
    wire = FaultyTransport(server.client().transport)
    wire.fault = lambda request: fault
    assert (await find_missing(Client(wire))).startswith(said)


async def test_controllers_work_with_exactly_these_permissions(server: ApiServer) -> None:
    await grant(server, rules())
    clock, metrics, client = SystemClock(), MetricsRegistry(), server.client()
    robot = Client(MeasuredTransport(server.client(ROBOT).transport, metrics, clock, "api"))
    assert await find_missing(robot) == ""
    process = ControllerProcess(robot.transport, clock, Random(1), metrics=metrics)
    node = asyncio.create_task(SimulatedNode(client, clock).run())
    await process.start()

    async def ready(type: ResourceType, name: str) -> bool:
        return is_ready(await client.get(type, name, "default"))

    async def gone(type: ResourceType, name: str) -> bool:
        with suppress(NotFound):
            await client.get(type, name, "default")
            return False
        return True

    storage = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    volumes = [{"metadata": {"name": "work"}, "spec": storage}]
    template = new(SANDBOX_TEMPLATE, "python", spec={"podTemplate": pod_template(), "volumeClaimTemplates": volumes})
    await client.create(SANDBOX_TEMPLATE, template, "default")
    pool = new(SANDBOX_WARM_POOL, "pool", spec={"replicas": 1, "sandboxTemplateRef": {"name": "python"}})
    await client.create(SANDBOX_WARM_POOL, pool, "default")
    claim = new(SANDBOX_CLAIM, "mine", spec={"warmPoolRef": {"name": "pool"}})
    await client.create(SANDBOX_CLAIM, claim, "default")
    await until(lambda: ready(SANDBOX_CLAIM, "mine"))
    box = new(SANDBOX, "box", spec={"podTemplate": pod_template(), "service": True})
    await client.create(SANDBOX, box, "default")
    await until(lambda: ready(SANDBOX, "box"))

    await client.patch(SANDBOX, "box", MergePatch({"spec": {"service": False, "operatingMode": SUSPENDED}}), "default")
    await until(lambda: gone(POD, "box"))
    await until(lambda: gone(SERVICE, "box"))
    await client.patch(SANDBOX_WARM_POOL, "pool", MergePatch({"spec": {"replicas": 0}}), "default")
    lifecycle = {"shutdownTime": "2020-01-01T00:00:00Z", "shutdownPolicy": "Delete"}
    await client.patch(SANDBOX_CLAIM, "mine", MergePatch({"spec": {"lifecycle": lifecycle}}), "default")
    await until(lambda: gone(SANDBOX_CLAIM, "mine"))
    unmanaged = MergePatch({"spec": {"networkPolicyManagement": "Unmanaged"}})
    await client.patch(SANDBOX_TEMPLATE, "python", unmanaged, "default")
    await until(lambda: gone(NETWORK_POLICY, network_policy_name("python")))

    await process.stop()
    node.cancel()
    await asyncio.gather(node, return_exceptions=True)
    counted = dict(metrics.counter(REQUESTS).copy().samples)
    assert {method for code, method, _ in counted} == {"GET", "POST", "PATCH", "DELETE"}
    assert [labels for labels in counted if labels[0] == "403"] == []
