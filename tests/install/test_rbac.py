"""The service account that is installed may do what the controllers do and nothing besides, on a real Kubernetes."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from sandpool.api.conditions import is_ready
from sandpool.api.kinds import (
    CLUSTER_ROLE,
    NAMESPACE,
    NETWORK_POLICY,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    ROLE,
    SANDBOX,
    SANDBOX_CLAIM,
    SANDBOX_TEMPLATE,
    SANDBOX_WARM_POOL,
    SERVICE,
)
from sandpool.api.labels import ADOPTABLE, LAUNCH_TYPE
from sandpool.api.names import network_policy_name
from sandpool.api.resource import Object, ResourceType, SharedObject
from sandpool.bench.child_process import Component
from sandpool.cli.install import chosen
from sandpool.engine.clock import SystemClock
from sandpool.install import names
from sandpool.install.installer import Installer
from sandpool.install.manifests import InstallOptions
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import NotFound
from sandpool.testing.objects import new
from sandpool.testing.waiting import until
from tests.install.conftest import ROUTER
from tests.support.installed_cluster import ACCOUNT, Cluster
from tests.support.permissions import Use, permissions

pytestmark = pytest.mark.kubernetes

SPACE = "scenario"
_BEHIND: Final = "asked only when a cache is behind what others, or we, have just done"
# What is granted and not used when all goes well, and why it is granted all the same.
IN_RESERVE: Final = {
    ("sandboxes", "get"): _BEHIND,
    ("sandboxclaims", "get"): _BEHIND,
    ("sandboxwarmpools", "get"): _BEHIND,
    ("sandboxtemplates", "get"): _BEHIND,
    ("pods", "get"): _BEHIND,
    ("services", "get"): _BEHIND,
    ("persistentvolumeclaims", "get"): _BEHIND,
    ("networkpolicies", "get"): _BEHIND,
    ("events", "patch"): "an Event is patched when the same thing happens again",
    ("pods/portforward", "get"): "no kubelet runs the pods of these tests",
    ("pods/portforward", "create"): "no kubelet runs the pods of these tests",
}


@pytest.fixture
async def client(cluster: Cluster) -> Client:
    """An administrator's, of a cluster with everything installed."""
    objects = chosen(InstallOptions(), router=True, monitored=False)
    await Installer(cluster.client, SystemClock(), lambda line: None).install(objects)
    await cluster.client.create(NAMESPACE, new(NAMESPACE, SPACE))
    return cluster.client


class Scenario:
    """The actions of users; each waits for its result."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def create(self, type: ResourceType, name: str, **fields: Any) -> SharedObject:
        return await self.client.create(type, new(type, name, **fields), SPACE)

    async def patch(self, type: ResourceType, name: str, **spec: Any) -> None:
        await self.client.patch(type, name, MergePatch({"spec": spec}), SPACE)

    async def get(self, type: ResourceType, name: str) -> SharedObject | None:
        try:
            return await self.client.get(type, name, SPACE)
        except NotFound:
            return None

    async def wait(self, probe: Callable[[], Awaitable[object]]) -> None:
        await until(probe, within=60)

    async def ready(self, type: ResourceType, name: str) -> None:
        async def probe() -> bool:
            found = await self.get(type, name)
            return found is not None and is_ready(found)

        await self.wait(probe)

    async def gone(self, type: ResourceType, name: str) -> None:
        async def probe() -> bool:
            return await self.get(type, name) is None

        await self.wait(probe)

    async def filled(self, image: str, count: int) -> None:
        """The pool's members are that many, of this image and ready."""

        async def probe() -> bool:
            boxes = (await self.client.list(SANDBOX, SPACE))["items"]
            members = [box for box in boxes if _owner(box) == "SandboxWarmPool" and is_ready(box)]
            current = [box for box in members if _image(box) == image]
            return len(members) == len(current) == count

        await self.wait(probe)


def _owner(box: Object) -> str:
    return next((str(each["kind"]) for each in box["metadata"].get("ownerReferences") or ()), "")


def _image(box: Object) -> str:
    return str(box["spec"]["podTemplate"]["spec"]["containers"][0]["image"])


def _pod(image: str = "example.com/image:1", port: int = 8888) -> Object:
    return {"spec": {"containers": [{"name": "main", "image": image, "ports": [{"containerPort": port}]}]}}


async def _live(scenario: Scenario) -> None:
    """Everything the controllers do at some time or other."""
    storage = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    volumes = [{"metadata": {"name": "work"}, "spec": storage}]
    past = "2020-01-01T00:00:00Z"

    await scenario.create(SANDBOX_TEMPLATE, "python", spec={"podTemplate": _pod(), "envVarsInjectionPolicy": "Allowed"})
    strategy = {"type": "Recreate"}
    pool = {"replicas": 2, "sandboxTemplateRef": {"name": "python"}, "updateStrategy": strategy}
    await scenario.create(SANDBOX_WARM_POOL, "pool", spec=pool)
    await scenario.filled("example.com/image:1", 2)

    # A claim that is served from the pool, and one that cannot be.
    await scenario.create(SANDBOX_CLAIM, "warm", spec={"warmPoolRef": {"name": "pool"}})
    env = [{"name": "A", "value": "1"}]
    await scenario.create(SANDBOX_CLAIM, "cold", spec={"warmPoolRef": {"name": "pool"}, "env": env})
    await scenario.ready(SANDBOX_CLAIM, "warm")
    await scenario.ready(SANDBOX_CLAIM, "cold")
    assert (await scenario.client.get(SANDBOX, "cold", SPACE))["metadata"]["labels"][LAUNCH_TYPE] == "cold"

    # A new template: the pool follows, and so does the NetworkPolicy.
    await scenario.patch(
        SANDBOX_TEMPLATE, "python", podTemplate=_pod("example.com/image:2"), networkPolicy={"egress": [{}]}
    )
    await scenario.filled("example.com/image:2", 2)
    policy = network_policy_name("python")

    async def open_to_all() -> bool:
        found = await scenario.get(NETWORK_POLICY, policy)
        return found is not None and found["spec"]["egress"] == [{}]

    await scenario.wait(open_to_all)

    # A sandbox with a Service and a volume that was there before: suspended, resumed, changed.
    adoptable = {"labels": {ADOPTABLE: "true"}}
    await scenario.create(PERSISTENT_VOLUME_CLAIM, "work-box", metadata=adoptable, spec=storage)
    await scenario.create(
        SANDBOX, "box", spec={"podTemplate": _pod(), "service": True, "volumeClaimTemplates": volumes}
    )
    await scenario.create(SANDBOX, "other", spec={"podTemplate": _pod(), "volumeClaimTemplates": volumes})
    await scenario.ready(SANDBOX, "box")
    await scenario.ready(SANDBOX, "other")
    await scenario.patch(SANDBOX, "box", operatingMode="Suspended", podTemplate=_pod(port=9999))
    await scenario.gone(POD, "box")
    await scenario.patch(SANDBOX, "box", operatingMode="Running")
    await scenario.ready(SANDBOX, "box")
    await scenario.patch(SANDBOX, "box", service=False)
    await scenario.gone(SERVICE, "box")

    # What ends: a sandbox and a claim that expire, a pool that is emptied, a policy that is not wanted any more.
    await scenario.patch(SANDBOX, "box", shutdownTime=past, shutdownPolicy="Delete")
    await scenario.gone(SANDBOX, "box")
    await scenario.patch(SANDBOX_CLAIM, "warm", lifecycle={"shutdownTime": past, "shutdownPolicy": "Delete"})
    await scenario.gone(SANDBOX_CLAIM, "warm")
    await scenario.patch(SANDBOX_WARM_POOL, "pool", replicas=0)
    await scenario.filled("example.com/image:2", 0)
    await scenario.patch(SANDBOX_TEMPLATE, "python", networkPolicyManagement="Unmanaged")
    await scenario.gone(NETWORK_POLICY, policy)


async def _granted(client: Client) -> set[tuple[str, str]]:
    roles = [
        await client.get(CLUSTER_ROLE, names.CONTROLLER),
        await client.get(ROLE, names.CONTROLLER, names.NAMESPACE),
    ]
    return permissions(rule for role in roles for rule in role["rules"])


async def test_controller_account_has_exactly_the_permissions_it_uses(cluster: Cluster, client: Client) -> None:
    async with cluster.controllers(SPACE):
        await _live(Scenario(client))
    granted = await _granted(client)

    def used() -> set[tuple[str, str]]:
        asked = [each for each in cluster.audit.requests(user=ACCOUNT) if each.resource]
        return {("/".join(filter(None, (each.resource, each.subresource))), each.verb) for each in asked}

    async def told() -> bool:
        return granted - used() <= IN_RESERVE.keys()

    # A watch is in the log when the API has noticed its end.
    with suppress(TimeoutError):
        await until(told)
    assert granted - used() <= IN_RESERVE.keys(), "granted and never used"
    # Every user may review its own permissions.
    assert used() - granted == {("selfsubjectaccessreviews", "create")}
    assert [str(each) for each in cluster.audit.requests(user=ACCOUNT) if each.code in (401, 403)] == []
    assert IN_RESERVE.keys() <= granted, "the list of what is in reserve is out of date"


async def test_router_account_has_exactly_the_permissions_it_uses(cluster: Cluster, tmp_path: Path) -> None:
    """The router runs as a separate process with its installed account."""
    objects = chosen(InstallOptions(), router=True, monitored=False)
    await Installer(cluster.client, SystemClock(), lambda line: None).install(objects)
    token, plane = await cluster.token(names.ROUTER_ACCOUNT), cluster.plane
    kubeconfig = plane.write_kubeconfig(tmp_path / "kubeconfig", names.ROUTER_ACCOUNT, token=token)
    addresses = ("http", "metrics", "health-probe")
    listening = [f"--{each}-bind-address=127.0.0.1:0" for each in addresses]
    command: list[str | Path] = [sys.executable, "-m", "sandpool.cli.main", "router", *listening]
    router = Component("router", [*command, "--kubeconfig", kubeconfig], tmp_path / "router.log")
    granted = permissions((await cluster.client.get(CLUSTER_ROLE, names.ROUTER_ACCOUNT))["rules"])
    listable = {what for what, verb in granted if verb == "list"}
    use = Use(ROUTER)

    async def all_used() -> bool:
        """Kubernetes logs a watch when it ends, and the router opens it at an unknown time after the list."""
        since = len(cluster.audit)

        async def listed() -> bool:
            asked = cluster.audit.requests(since=since, user=ROUTER)
            return {each.resource for each in asked if each.verb == "list"} == listable

        router.start()
        try:
            await until(listed, within=60)
            await asyncio.to_thread(router.wait_for, "routing to the sandboxes", 60)
            # A request with a token has the router review the token, and then the access of its user.
            url = "http://127.0.0.1:" + re.findall(r" on port (\d+)", router.tail())[-1]
            headers = {"Authorization": f"Bearer {token}", "X-Sandbox-ID": "absent"}
            async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as response:
                assert response.status == 403
        finally:
            await asyncio.to_thread(router.stop, 20)
        use.note(plane.audit_log)
        return use.used >= granted

    await until(all_used, within=120)
    assert use.findings(granted, complete=True) == []
    assert use.used == granted


async def test_every_object_is_accepted_by_a_dry_run(cluster: Cluster) -> None:
    """Includes namespaced objects, whose namespace must exist for a dry run."""
    told: list[str] = []
    await cluster.client.create(NAMESPACE, new(NAMESPACE, names.NAMESPACE))
    objects = [each for each in chosen(InstallOptions(), router=True, monitored=False) if each["kind"] != "Namespace"]
    await Installer(cluster.client, SystemClock(), told.append, dry_run=True).install(objects)
    assert len(told) == len(objects)
    assert all(line.endswith("created (dry run)") for line in told)
