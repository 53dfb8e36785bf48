"""The whole process beside an API in the place of kube-apiserver."""

from __future__ import annotations

import asyncio
import base64
import io
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from sandpool.api.conditions import is_ready
from sandpool.api.kinds import (
    API_SERVICE,
    API_SERVICES,
    CLUSTER_ROLE,
    LEASE,
    NAMESPACE,
    POD,
    ROLE_BINDING,
    SANDBOX,
    SANDBOX_CLAIM,
    SANDBOX_TEMPLATE,
    SANDBOX_WARM_POOL,
)
from sandpool.api.labels import SANDBOX_NAME_HASH, VOLUME_STAMP
from sandpool.api.resource import Object
from sandpool.api.schema.crds import crd
from sandpool.engine.clock import SystemClock, micro_timestamp
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import Conflict
from sandpool.kube.transport import Request
from sandpool.node.simulated import SimulatedNode
from sandpool.server.aggregated.process import AggregatedProcess, _identity
from sandpool.server.aggregated.volume import OVERRIDE, LeaseName, Volume, WrongVolume
from sandpool.server.serving.pki import Authority
from sandpool.server.store.backup import back_up, restore
from sandpool.server.store.journal import Journal, StoreInUse
from sandpool.server.store.store import Store
from sandpool.server.store.volume_mark import VolumeMark
from sandpool.testing.clock import ManualClock
from sandpool.testing.objects import new, pod, pod_template
from sandpool.testing.waiting import until
from tests.server.aggregated.conftest import LEASE as LEASE_NAME
from tests.support.api_objects import owner_reference
from tests.support.custom_kinds import install

if TYPE_CHECKING:
    from tests.server.aggregated.conftest import Cluster, Proxy

CLAIMS = "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/ns/sandboxclaims"
TEMPLATES = CLAIMS.replace("sandboxclaims", "sandboxtemplates")
POOLS = CLAIMS.replace("sandboxclaims", "sandboxwarmpools")
SANDBOXES = "/apis/agents.x-k8s.io/v1beta1/namespaces/ns/sandboxes"


async def serving(process: AggregatedProcess) -> None:
    """Wait until it serves; raise why it ended if it did."""
    ended = asyncio.create_task(process.wait())
    ready = asyncio.create_task(process.serving.wait())
    async with asyncio.timeout(60):
        await asyncio.wait((ended, ready), return_when=asyncio.FIRST_COMPLETED)
    if ended.done():
        ended.result()
    for task in (ended, ready):
        task.cancel()


def claim(name: str) -> Object:
    return new(SANDBOX_CLAIM, name, spec={"warmPoolRef": {"name": "python"}})


def pod_of_a_sandbox() -> Object:
    return pod("box", metadata={"labels": {SANDBOX_NAME_HASH: "abc"}})


async def grant_alice(cluster: Cluster, rule: Object) -> None:
    """Give a user permissions on the claims of the namespace."""
    rules = [{"apiGroups": ["*"], "resources": ["sandboxclaims"], **rule}]
    await cluster.client.create(CLUSTER_ROLE, new(CLUSTER_ROLE, "claimer", rules=rules))
    binding = {
        "roleRef": {"apiGroup": CLUSTER_ROLE.group, "kind": "ClusterRole", "name": "claimer"},
        "subjects": [{"apiGroup": CLUSTER_ROLE.group, "kind": "User", "name": "alice"}],
    }
    await cluster.client.create(ROLE_BINDING, new(ROLE_BINDING, "alice", **binding), "ns")


async def test_warm_claim_is_served_with_its_pod_in_the_other_api(cluster: Cluster) -> None:
    process = await cluster.process()
    await serving(process)
    proxy = cluster.proxy(process)
    node = asyncio.create_task(SimulatedNode(cluster.client, SystemClock(), namespace="ns", brief=True).run())
    template = new(SANDBOX_TEMPLATE, "python", spec={"podTemplate": pod_template()})
    pool = new(SANDBOX_WARM_POOL, "python", spec={"replicas": 2, "sandboxTemplateRef": {"name": "python"}})
    for path, body in ((TEMPLATES, template), (POOLS, pool)):
        assert (await proxy("POST", path, body)).status == 201

    async def filled() -> bool:
        status: Object = (await proxy("GET", f"{POOLS}/python")).body.get("status", {})
        return bool(status.get("readyReplicas") == 2)

    await until(filled)
    assert (await proxy("POST", CLAIMS, claim("mine"))).status == 201

    async def ready() -> bool:
        return is_ready((await proxy("GET", f"{CLAIMS}/mine")).body)

    await until(ready)
    pods = (await cluster.client.list(POD, "ns"))["items"]
    sandboxes = {each["metadata"]["uid"] for each in (await proxy("GET", SANDBOXES)).body["items"]}
    assert {each["metadata"]["ownerReferences"][0]["uid"] for each in pods} <= sandboxes
    node.cancel()
    await asyncio.gather(node, return_exceptions=True)


async def test_caller_may_do_what_the_other_api_allows(cluster: Cluster) -> None:
    process = await cluster.process()
    await serving(process)
    proxy = cluster.proxy(process)
    refused = await proxy("GET", CLAIMS, user="alice", groups=())
    assert refused.status == 403
    assert 'User "alice" cannot list resource "sandboxclaims"' in refused.body["message"]
    await grant_alice(cluster, {"verbs": ["create"]})
    assert (await proxy("POST", CLAIMS, claim("hers"), user="alice", groups=())).status == 201
    assert (await proxy("GET", CLAIMS, user="alice", groups=())).status == 403
    elsewhere = CLAIMS.replace("/ns/", "/default/")
    assert (await proxy("POST", elsewhere, claim("hers"), user="alice", groups=())).status == 403


async def test_object_that_a_role_names_can_be_listed_and_watched(cluster: Cluster) -> None:
    """As `kubectl get NAME -w` and `kubectl wait` do."""
    process = await cluster.process()
    await serving(process)
    proxy = cluster.proxy(process)
    for name in ("mine", "other"):
        await proxy("POST", CLAIMS, claim(name))
    await grant_alice(cluster, {"verbs": ["get", "list", "watch", "deletecollection"], "resourceNames": ["mine"]})
    found = await proxy("GET", f"{CLAIMS}?fieldSelector=metadata.name%3Dmine", user="alice", groups=())
    assert found.status == 200
    assert [each["metadata"]["name"] for each in found.body["items"]] == ["mine"]
    watching = f"{CLAIMS}?watch=true&timeoutSeconds=1&fieldSelector=metadata.name%3D"
    assert (await proxy("GET", f"{watching}mine", user="alice", groups=())).status == 200
    for method, path in (
        ("GET", f"{watching}other"),
        ("GET", f"{CLAIMS}?fieldSelector=metadata.name%3Dother"),
        ("GET", f"{CLAIMS}?fieldSelector=metadata.name!%3Dmine"),
        ("GET", CLAIMS),
        ("DELETE", f"{CLAIMS}?fieldSelector=metadata.name%3Dmine"),
    ):
        assert (await proxy(method, path, user="alice", groups=())).status == 403, path


async def test_only_the_proxy_may_name_a_user(cluster: Cluster) -> None:
    process = await cluster.process()
    await serving(process)
    proxy = cluster.proxy(process)
    assert (await proxy("GET", CLAIMS)).status == 200
    assert (await proxy("GET", CLAIMS, user="")).status == 401
    assert (await cluster.proxy(process, name="another")("GET", CLAIMS)).status == 401
    assert (await proxy("GET", CLAIMS, headers={"Impersonate-User": "bob"})).status == 403
    stranger = Authority(cluster.directory / "stranger", SystemClock())
    with pytest.raises(aiohttp.ClientError):
        await cluster.proxy(process, stranger)("GET", CLAIMS)
    tls = ssl.create_default_context(cadata=(process.options.serving.data_dir / "pki" / "ca.crt").read_text())
    async with aiohttp.ClientSession() as session:
        headers = {"X-Remote-User": "admin", "X-Remote-Group": "system:masters"}
        for path, expected in ((CLAIMS, 401), ("/readyz", 200)):
            url = f"https://127.0.0.1:{process.port}{path}"
            async with session.get(url, headers=headers, ssl=tls) as response:
                assert response.status == expected


async def test_new_namespace_is_known_at_once_and_a_missing_one_refused(cluster: Cluster) -> None:
    process = await cluster.process()
    await serving(process)
    proxy = cluster.proxy(process)
    for number in range(5):
        await cluster.client.create(NAMESPACE, new(NAMESPACE, f"new-{number}"))
        assert (await proxy("POST", CLAIMS.replace("/ns/", f"/new-{number}/"), claim("a"))).status == 201
    missing = await proxy("POST", CLAIMS.replace("/ns/", "/missing/"), claim("a"))
    assert missing.status == 404
    assert missing.body["message"] == 'namespaces "missing" not found'


async def test_second_copy_waits_until_the_first_has_stopped(cluster: Cluster) -> None:
    first = await cluster.process("one")
    await serving(first)
    second = await cluster.process("two")

    async def waits() -> bool:
        return second._election._seen.holder == _identity(first.options.serving.data_dir)

    await until(waits)
    assert second.port == 0, "it does not listen"
    with pytest.raises(StoreInUse):
        await cluster.process("one")
    await first.stop()
    await serving(second)


async def test_lease_of_a_killed_predecessor_on_the_same_volume_is_taken_at_once(cluster: Cluster) -> None:
    data_dir = cluster.directory / "data"
    data_dir.mkdir()
    now = micro_timestamp(SystemClock().now())
    spec = {
        "holderIdentity": _identity(data_dir),
        "leaseDurationSeconds": 3600,
        "leaseTransitions": 0,
        "acquireTime": now,
        "renewTime": now,
    }
    await cluster.client.create(LEASE, new(LEASE, LEASE_NAME, spec=spec), "ns")
    await serving(await cluster.process("data"))


async def test_objects_are_there_after_a_restart(cluster: Cluster) -> None:
    process = await cluster.process()
    await serving(process)
    created = await cluster.proxy(process)("POST", CLAIMS, claim("mine"))
    await process.stop()
    process = await cluster.process()
    await serving(process)
    found = await cluster.proxy(process)("GET", f"{CLAIMS}/mine")
    assert found.body["metadata"]["uid"] == created.body["metadata"]["uid"]


async def test_empty_volume_is_refused_while_pods_of_sandboxes_exist(cluster: Cluster) -> None:
    await cluster.client.create(POD, pod_of_a_sandbox(), "ns")
    process = await cluster.process()
    with pytest.raises(WrongVolume, match=f"pods of sandboxes .1, among them ns/box.*{OVERRIDE}"):
        await serving(process)
    assert process.port == 0, "it never listened"
    await process.stop()
    await serving(await cluster.process(accept_lost=True))


async def test_volume_with_history_is_accepted_although_it_has_no_sandbox(cluster: Cluster) -> None:
    """The last sandbox was deleted, and its pod is not collected yet."""
    process = await cluster.process()
    await serving(process)
    proxy = cluster.proxy(process)
    await proxy("POST", CLAIMS, claim("mine"))
    await proxy("DELETE", f"{CLAIMS}/mine")
    await process.stop()
    await cluster.client.create(POD, pod_of_a_sandbox(), "ns")
    await serving(await cluster.process())


async def create_sandbox(cluster: Cluster, proxy: Proxy, name: str, **spec: Any) -> None:
    """Create a sandbox and wait until it has a pod."""
    created = await proxy("POST", SANDBOXES, new(SANDBOX, name, spec={"podTemplate": pod_template(), **spec}))
    assert created.status == 201, created.body

    async def has_pod() -> bool:
        return bool((await cluster.client.list(POD, "ns", field_selector=f"metadata.name={name}"))["items"])

    await until(has_pod)


async def refused(process: AggregatedProcess, why: str) -> None:
    with pytest.raises(WrongVolume, match=f"(?s){why}"):
        await serving(process)
    assert process.port == 0, "it never listened"
    await process.stop()


def backup(data_dir: Path) -> bytes:
    saved = io.BytesIO()
    back_up(data_dir, saved, ManualClock(datetime(2020, 1, 1, tzinfo=UTC)), lambda done, total: None)
    return saved.getvalue()


async def test_empty_volume_is_refused_while_a_suspended_sandbox_has_a_volume_claim(cluster: Cluster) -> None:
    """Its pod is gone, and the garbage collector would delete its PersistentVolumeClaim."""
    process = await cluster.process()
    await serving(process)
    proxy = cluster.proxy(process)
    storage = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    await create_sandbox(cluster, proxy, "mine", volumeClaimTemplates=[{"metadata": {"name": "work"}, "spec": storage}])
    current = (await proxy("GET", f"{SANDBOXES}/mine")).body
    current["spec"]["operatingMode"] = "Suspended"
    assert (await proxy("PUT", f"{SANDBOXES}/mine", current)).status == 200

    async def without_pods() -> bool:
        return not (await cluster.client.list(POD, "ns"))["items"]

    await until(without_pods, within=60)
    await cluster.remembers(process)
    await process.stop()
    await refused(await cluster.process("empty"), f"empty, and this cluster has its sandboxes.*{OVERRIDE}")
    await cluster.client.delete(LEASE, LEASE_NAME, "ns")
    await refused(await cluster.process("empty"), f"has persistentvolumeclaims of sandboxes .1, .*{OVERRIDE}")


async def test_empty_volume_is_refused_although_what_was_lost_has_no_pods(cluster: Cluster) -> None:
    process = await cluster.process()
    await serving(process)
    await cluster.proxy(process)("POST", CLAIMS, claim("mine"))
    await cluster.remembers(process)
    await process.stop()
    await refused(await cluster.process("empty"), rf"empty, and this cluster has its .*\(1 objects\).*{OVERRIDE}")
    await serving(await cluster.process())


async def test_volume_other_than_that_of_the_cluster_is_refused(cluster: Cluster) -> None:
    other = await cluster.process("other")
    await serving(other)
    assert (await cluster.proxy(other)("POST", CLAIMS, claim("old"))).status == 201
    await other.stop()
    await cluster.client.delete(LEASE, LEASE_NAME, "ns")
    process = await cluster.process()
    await serving(process)
    assert (await cluster.proxy(process)("POST", CLAIMS, claim("mine"))).status == 201
    await cluster.remembers(process)
    await process.stop()
    await refused(await cluster.process("other"), "is another volume, and this cluster has its sandboxes")
    accepted = await cluster.process("other", accept_lost=True)
    await serving(accepted)
    await cluster.remembers(accepted)
    await accepted.stop()
    await refused(await cluster.process(), "is another volume")
    await serving(await cluster.process("other"))


async def test_empty_volume_is_accepted_when_all_objects_were_deleted(cluster: Cluster) -> None:
    process = await cluster.process()
    await serving(process)
    proxy = cluster.proxy(process)
    await proxy("POST", CLAIMS, claim("mine"))
    await proxy("DELETE", f"{CLAIMS}/mine")
    await cluster.remembers(process)
    await process.stop()
    await serving(await cluster.process("empty"))


async def test_snapshot_from_before_the_last_write_is_refused(cluster: Cluster) -> None:
    process = await cluster.process()
    await serving(process)
    await cluster.remembers(process)
    await process.stop()
    cluster.snapshot("snapshot")
    process = await cluster.process()
    await serving(process)
    await cluster.proxy(process)("POST", CLAIMS, claim("late"))
    await cluster.remembers(process)
    await process.stop()
    await refused(await cluster.process("snapshot"), f"(is empty|is older than this cluster).*{OVERRIDE}")


async def test_snapshot_is_refused_although_the_cluster_did_not_learn_of_the_last_write(cluster: Cluster) -> None:
    """The process was killed before it renewed its lease. The pod tells the revision, whatever the clocks say."""
    process = await cluster.process()
    await serving(process)
    await create_sandbox(cluster, cluster.proxy(process), "early")
    await process.stop()
    cluster.snapshot("snapshot")
    process = await cluster.process()
    await serving(process)
    cluster.cut_off(process)
    await create_sandbox(cluster, cluster.proxy(process), "late")
    await cluster.crash(process)
    await refused(
        await cluster.process("snapshot"), f"is older than this cluster.* 1 objects .*pod ns/late.*{OVERRIDE}"
    )
    process = await cluster.process("snapshot", accept_lost=True)
    await serving(process)
    await process.stop()
    await refused(await cluster.process(), "is another volume")
    await serving(await cluster.process("snapshot"))


async def test_crashed_process_starts_again_although_a_pod_outlives_its_sandbox(cluster: Cluster) -> None:
    """A pod without a sandbox from before the last write is that of a deleted one."""
    process = await cluster.process()
    await serving(process)
    proxy = cluster.proxy(process)
    await create_sandbox(cluster, proxy, "mine")
    assert (await proxy("DELETE", f"{SANDBOXES}/mine")).status == 200
    assert (await cluster.client.list(POD, "ns"))["items"], "no garbage collector runs here"
    cluster.cut_off(process)
    await cluster.crash(process)
    await serving(await cluster.process())


async def test_volume_is_accepted_when_its_lease_was_deleted_and_a_pod_outlives_its_sandbox(cluster: Cluster) -> None:
    process = await cluster.process()
    await serving(process)
    proxy = cluster.proxy(process)
    await create_sandbox(cluster, proxy, "deleted")
    assert (await proxy("DELETE", f"{SANDBOXES}/deleted")).status == 200
    await create_sandbox(cluster, proxy, "kept")
    await process.stop()
    mark = VolumeMark.read(cluster.directory / "data")
    for _ in range(2):  # the second start finds what the first has left
        await cluster.client.delete(LEASE, LEASE_NAME, "ns")
        process = await cluster.process()
        await serving(process)
        await cluster.remembers(process)
        await process.stop()
        assert VolumeMark.read(cluster.directory / "data") == mark
    await refused(await cluster.process("empty"), "is empty")


async def test_lease_may_be_renewed_while_the_volume_is_checked(cluster: Cluster) -> None:
    """A check of thousands of pods takes longer than a renewal."""
    lease = new(LEASE, LEASE_NAME, spec={"holderIdentity": "me", "leaseTransitions": 0})
    await cluster.client.create(LEASE, lease, "ns")
    store = Store(Journal(cluster.directory / "data"))
    volume = Volume(cluster.directory / "data", store, LeaseName(LEASE_NAME, "ns"))
    holder = "me"

    class Renewing:
        """A transport on which a list of pods takes so long that the lease is renewed, or taken."""

        transport = cluster.client.transport

        async def request(self, request: Request) -> Any:
            if request.path.endswith("/pods"):
                change = MergePatch({"spec": {"holderIdentity": holder, "renewTime": micro_timestamp(clock.now())}})
                await cluster.client.patch(LEASE, LEASE_NAME, change, "ns")
            return await self.transport.request(request)

    clock = SystemClock()
    slow = Client(Renewing())  # type: ignore[arg-type]
    await volume.open(slow)
    remembered = await cluster.client.get(LEASE, LEASE_NAME, "ns")
    assert remembered["metadata"]["annotations"] == volume.annotations()
    await cluster.client.delete(LEASE, LEASE_NAME, "ns")
    await cluster.client.create(LEASE, lease, "ns")
    holder = "another"
    with pytest.raises(Conflict):
        await volume.open(slow)
    assert "annotations" not in (await cluster.client.get(LEASE, LEASE_NAME, "ns"))["metadata"]
    await store.close()


async def test_backup_from_before_a_sandbox_is_refused(cluster: Cluster) -> None:
    process = await cluster.process()
    await serving(process)
    proxy = cluster.proxy(process)
    await create_sandbox(cluster, proxy, "early")
    saved = backup(process.options.serving.data_dir)
    await create_sandbox(cluster, proxy, "late")
    await cluster.remembers(process)
    await process.stop()
    restore(io.BytesIO(saved), cluster.directory / "restored", lambda done, total: None)
    restore(io.BytesIO(saved), cluster.directory / "data", lambda done, total: None, replace=True)
    why = f"is older than this cluster.* 1 objects .*pod ns/late.*{OVERRIDE}"
    await refused(await cluster.process("data"), why)
    await refused(await cluster.process("restored"), why)
    await serving(await cluster.process("restored", accept_lost=True))


async def test_backup_that_has_all_sandboxes_takes_the_place_of_the_volume(cluster: Cluster) -> None:
    process = await cluster.process()
    await serving(process)
    proxy = cluster.proxy(process)
    for name in ("deleted", "kept"):
        await create_sandbox(cluster, proxy, name)
    assert (await proxy("DELETE", f"{SANDBOXES}/deleted")).status == 200
    saved = backup(process.options.serving.data_dir)
    await cluster.remembers(process)
    await process.stop()
    restore(io.BytesIO(saved), cluster.directory / "restored", lambda done, total: None)
    process = await cluster.process("restored")
    await serving(process)
    await create_sandbox(cluster, cluster.proxy(process), "new")
    await cluster.remembers(process)
    await process.stop()
    await refused(await cluster.process("data"), "is older than this cluster")
    await serving(await cluster.process("restored"))


async def test_custom_resources_that_do_not_move_are_not_hidden(cluster: Cluster) -> None:
    await install(cluster.client, crd(SANDBOX))
    await cluster.client.create(POD, pod_of_a_sandbox(), "ns")  # of a custom resource: no volume has marked it
    await refused(
        await cluster.process(),
        "CustomResourceDefinition sandboxes.agents.x-k8s.io.*delete apiservice.*storage move --to aggregated",
    )


# Not that of the owners of pods: the collector of this cluster would look for them in the custom resources.
STRAY = SANDBOX_TEMPLATE


async def refusal(process: AggregatedProcess) -> str:
    with pytest.raises(WrongVolume) as error:
        await serving(process)
    assert process.port == 0, "it never listened"
    await process.stop()
    return str(error.value)


def keeps_the_api_services(said: str) -> bool:
    """Whether a refusal tells to delete the definitions, and in no case the APIServices."""
    return (
        "Do not delete the APIServices" in said
        and f"kubectl delete crd {STRAY.group_resource}" in said
        and "delete apiservice" not in said
    )


async def test_stray_definitions_are_to_be_deleted_and_not_the_api_services(cluster: Cluster) -> None:
    """Without the APIServices an empty kind is served, and the garbage collector deletes all pods."""
    process = await cluster.process()
    await serving(process)
    await create_sandbox(cluster, cluster.proxy(process), "mine")
    await cluster.remembers(process)
    await process.stop()
    await install(cluster.client, crd(STRAY))
    said = await refusal(await cluster.process())
    assert keeps_the_api_services(said)
    assert "are on this volume" in said
    assert "Mount" not in said
    assert "go with them" not in said
    volume = VolumeMark.read(cluster.directory / "data")
    assert volume is not None
    said = await refusal(await cluster.process("empty"))
    assert keeps_the_api_services(said)
    assert f"are on the volume {volume.id}" in said
    assert "Mount that volume" in said
    await cluster.undefine(STRAY)
    process = await cluster.process()
    await serving(process)
    assert (await cluster.proxy(process)("GET", f"{SANDBOXES}/mine")).status == 200


async def test_stray_definitions_are_recognized_without_the_lease(cluster: Cluster) -> None:
    """By the pods: those that the volume has created, and those of its sandboxes that it took in."""
    process = await cluster.process()
    await serving(process)
    await create_sandbox(cluster, cluster.proxy(process), "mine")
    await process.stop()
    await install(cluster.client, crd(STRAY))
    await cluster.client.delete(LEASE, LEASE_NAME, "ns")
    for volume, where in (("data", "are on this volume"), ("empty", "Mount that volume")):
        said = await refusal(await cluster.process(volume))
        assert keeps_the_api_services(said)
        assert where in said
    unstamped = MergePatch({"metadata": {"annotations": {VOLUME_STAMP: None}}})
    await cluster.client.patch(POD, "mine", unstamped, "ns")
    assert keeps_the_api_services(await refusal(await cluster.process("data")))


async def test_refusal_of_definitions_names_the_pods_that_only_custom_resources_can_own(cluster: Cluster) -> None:
    process = await cluster.process()
    await serving(process)
    await create_sandbox(cluster, cluster.proxy(process), "mine")
    await cluster.remembers(process)
    await process.stop()
    await install(cluster.client, crd(STRAY))
    custom = new(SANDBOX, "other", metadata={"uid": "of-a-custom-resource"})
    metadata = {"labels": {SANDBOX_NAME_HASH: "abc"}, "ownerReferences": [owner_reference(custom, controller=True)]}
    await cluster.client.create(POD, pod("other", metadata=metadata), "ns")
    said = await refusal(await cluster.process())
    assert keeps_the_api_services(said)
    assert "1 objects are of sandboxes that are not on this volume, and go with them (among them pod ns/other)" in said


async def test_restart_of_a_process_writes_the_lease_only_and_without_a_conflict(cluster: Cluster) -> None:
    process = await cluster.process()
    await serving(process)
    await cluster.proxy(process)("POST", CLAIMS, claim("mine"))
    await process.stop()
    process = await cluster.process()
    await serving(process)
    before = (await cluster.client.get(LEASE, LEASE_NAME, "ns"))["metadata"]["resourceVersion"]

    async def renewed() -> bool:
        return bool((await cluster.client.get(LEASE, LEASE_NAME, "ns"))["metadata"]["resourceVersion"] != before)

    await until(renewed)
    assert process._election.slow_paths == 0


async def test_volume_of_another_cluster_is_refused(cluster: Cluster) -> None:
    data_dir = cluster.directory / "data"
    data_dir.mkdir()
    (data_dir / "cluster").write_text("another-uid\n")
    with pytest.raises(WrongVolume, match="written for the cluster with the UID another-uid"):
        await serving(await cluster.process("data"))


async def test_new_ca_of_the_proxy_replaces_the_old_one(cluster: Cluster) -> None:
    process = await cluster.process()
    await serving(process)
    old = cluster.proxy(process)
    assert (await old("GET", CLAIMS)).status == 200
    renewed = Authority(cluster.directory / "renewed", SystemClock())
    await cluster.trust(renewed)

    async def accepted() -> bool:
        try:
            return (await cluster.proxy(process, renewed)("GET", CLAIMS)).status == 200
        except aiohttp.ClientError:
            return False

    await until(accepted)
    with pytest.raises(aiohttp.ClientError):
        await old("GET", CLAIMS)


async def test_ca_of_the_server_is_published_and_stays(cluster: Cluster) -> None:
    await cluster.serve_api_services()
    process = await cluster.process()
    await serving(process)
    ca = (process.options.serving.data_dir / "pki" / "ca.crt").read_bytes()
    for name in API_SERVICES:
        await cluster.client.create(API_SERVICE, new(API_SERVICE, name, spec={"group": name.partition(".")[2]}))

        async def published(name: str = name) -> bool:
            spec: Object = (await cluster.client.get(API_SERVICE, name))["spec"]
            return bool(base64.b64decode(spec.get("caBundle", "")) == ca)

        await until(published)
        await cluster.client.delete(API_SERVICE, name)
        again = new(API_SERVICE, name, spec={"group": name.partition(".")[2], "caBundle": "b2xk"})
        await cluster.client.create(API_SERVICE, again)
        await until(published)
