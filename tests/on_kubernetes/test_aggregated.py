"""The storage ``aggregated`` behind a real kube-apiserver, with the garbage collector and the namespace controller of
kube-controller-manager."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from sandpool.api.conditions import is_ready
from sandpool.api.kinds import (
    API_SERVICES,
    CLUSTER_ROLE,
    CONFIG_MAP,
    CUSTOM_RESOURCE_DEFINITION,
    LEASE,
    NAMESPACE,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    ROLE_BINDING,
    SANDBOX,
    SANDBOX_CLAIM,
    SANDBOX_WARM_POOL,
    SANDPOOL,
    SERVICE,
)
from sandpool.api.resource import Object, ResourceType, SharedObject
from sandpool.bench.child_process import Component
from sandpool.cli.install import chosen
from sandpool.cli.main import main
from sandpool.engine.clock import SystemClock
from sandpool.install import names
from sandpool.install.errors import InstallError
from sandpool.install.installer import Installer
from sandpool.install.manifests import InstallOptions, definitions
from sandpool.install.remover import Remover
from sandpool.install.storage import choose_storage
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import Forbidden, NotFound, ServiceUnavailable
from sandpool.node.simulated import SimulatedNode
from sandpool.server.serving.pki import Authority
from sandpool.testing.objects import new, pod_template
from sandpool.testing.waiting import until
from tests.support.aggregated_backend import ACCOUNT
from tests.support.aggregated_cluster import AggregatedApi, apply
from tests.support.api_access import HttpEndpoint
from tests.support.api_objects import owner_reference
from tests.support.assets import Assets
from tests.support.cluster_collector import collected_something, is_gone
from tests.support.control_plane import AUTOSCALER as AUTOSCALER_CONTROLLER
from tests.support.control_plane import ControlPlane, aggregation_flags
from tests.support.kubectl import OLDEST_MINOR, Kubectl, find_kubectls
from tests.support.permissions import use_of
from tests.support.persistent_clients import POOL, PersistentClients
from tests.support.users import ADMIN, USERS

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.timeout(300),
    # Of a server that is killed while a client of these tests shakes hands with it: asyncio forgets the socket.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <(socket|function _Selector)"),
]

SIZE: Final = 3  # of the pool
AUDIT_LOG: Final = "audit.log"
PASS_LOG: Final = "passes.log"
AUTOSCALER: Final = ResourceType("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
CPU: Final[Object] = {
    "type": "Resource",
    "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}},
}
_TIMEOUT: Final = 90.0  # seconds until a controller of the cluster has done its part on a loaded machine


@pytest.fixture(scope="module")
def aggregating(
    kubernetes_assets: Assets, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[ControlPlane]:
    """A control plane with an aggregation layer and without our CustomResourceDefinitions."""
    flags = aggregation_flags(Authority(tmp_path_factory.mktemp("front-proxy"), SystemClock()))
    with ControlPlane(
        kubernetes_assets,
        fsync=False,
        users=USERS,
        audit=(ACCOUNT, ADMIN),
        apiserver_flags=flags,
        controllers=(AUTOSCALER_CONTROLLER,),
    ) as plane:
        yield plane
        # Refused while a test has removed the installation, and until a new one is known.
        use_of(pytestconfig, ACCOUNT).note(plane.audit_log, refusals=False)


@pytest.fixture(scope="module")
def api(aggregating: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AggregatedApi]:
    """The process, one for all tests: the garbage collector takes half a minute to follow one that starts anew."""
    directory = tmp_path_factory.mktemp("volume")
    logs = (f"--audit-log={directory / AUDIT_LOG}", f"--pass-log={directory / PASS_LOG}")
    api = AggregatedApi(aggregating, directory, options=logs)

    async def start() -> None:
        endpoint = HttpEndpoint(aggregating.url, aggregating.ca, aggregating.tokens)
        await api.start(endpoint.client_for(ADMIN))
        await endpoint.close()
        aggregating.restart(aggregating.controller_manager)

    try:
        asyncio.run(start())
        yield api
    finally:
        api.close()


@pytest.fixture
async def endpoint(aggregating: ControlPlane) -> AsyncIterator[HttpEndpoint]:
    endpoint = HttpEndpoint(aggregating.url, aggregating.ca, aggregating.tokens)
    yield endpoint
    await endpoint.close()


@pytest.fixture
def client(endpoint: HttpEndpoint) -> Client:
    return endpoint.client_for(ADMIN)


@pytest.fixture
async def clients(api: AggregatedApi, client: Client) -> AsyncIterator[PersistentClients]:
    """Clients with a pool, and a simulated node for their pods. Fails if an object is left at the end."""
    clients = PersistentClients(client, f"t-{secrets.token_hex(4)}", SIZE)
    await clients.settle_down()
    running = SimulatedNode(client, SystemClock(), namespace=clients.namespace, brief=True)
    node = asyncio.create_task(running.run())
    yield clients
    await clients.leave()
    node.cancel()
    await asyncio.gather(node, return_exceptions=True)


@pytest.fixture
def kubectl(api: AggregatedApi, clients: PersistentClients, tmp_path: Path) -> Kubectl:
    found = find_kubectls()
    if not found:
        pytest.skip(f"no kubectl of 1.{OLDEST_MINOR} or newer")
    return Kubectl(next(iter(found.values())), api.plane.kubeconfig, tmp_path / "discovery", clients.namespace)


async def pods_by_uid(client: Client, namespace: str) -> dict[str, str]:
    return {each["metadata"]["uid"]: each["metadata"]["name"] for each in (await client.list(POD, namespace))["items"]}


async def sandbox_of(client: Client, name: str, namespace: str) -> SharedObject:
    """The sandbox of a claim that is ready."""
    claim = await client.get(SANDBOX_CLAIM, name, namespace)
    assert is_ready(claim)
    return await client.get(SANDBOX, claim["status"]["sandbox"]["name"], namespace)


def owned_by(object: SharedObject, owner: SharedObject) -> bool:
    return owner["metadata"]["uid"] in {each["uid"] for each in object["metadata"].get("ownerReferences") or ()}


def template(name: str = "applied") -> str:
    return f"""
apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxTemplate
metadata: {{name: {name}}}
spec:
  podTemplate:
    spec:
      containers: [{{name: main, image: "example.com/image:1"}}]
"""


async def test_kubectl_works_unmodified(kubectl: Kubectl, clients: PersistentClients) -> None:
    async def run(*arguments: str, stdin: str | None = None) -> str:
        """In a thread, because the simulated node works in this one."""
        return await asyncio.to_thread(kubectl, *arguments, stdin=stdin, within=120)

    async def ready(count: int) -> None:
        await run("wait", f"sandboxwarmpool/{POOL}", f"--for=jsonpath={{.status.readyReplicas}}={count}")

    await clients.filled()
    assert "serverside-applied" in await run("apply", "--server-side", "-f", "-", stdin=template())
    assert "sandboxes" in await run("api-resources", "--api-group=agents.x-k8s.io")
    assert "READY" in await run("get", "sandboxes"), "a table with our columns"
    assert "FIELD: replicas <integer>" in await run("explain", "sandboxwarmpool.spec.replicas")
    await run("scale", f"sandboxwarmpool/{POOL}", f"--replicas={SIZE + 1}")
    await ready(SIZE + 1)
    await run("scale", f"sandboxwarmpool/{POOL}", f"--replicas={SIZE}")
    await ready(SIZE)
    with kubectl.start("get", "sandboxclaims", "--watch", "--output=name") as watching:
        try:
            await clients.claim(["mine"])
            await run("wait", "sandboxclaim/mine", "--for=condition=Ready", "--timeout=60s")
            assert watching.stdout is not None
            seen = await asyncio.to_thread(watching.stdout.readline)
        finally:
            watching.kill()
    assert seen == f"{SANDBOX_CLAIM.singular}.{SANDBOX_CLAIM.group}/mine\n"
    misspelt = template("bad").replace("podTemplate", "podTemplat")
    assert 'unknown field "spec.podTemplat"' in kubectl.fails("create", "-f", "-", stdin=misspelt)
    assert "deleted" in await run("delete", "sandboxclaim", "mine")


async def test_horizontal_pod_autoscaler_scales_a_pool(clients: PersistentClients, client: Client) -> None:
    """The controller reads and writes the scale. Without metrics it keeps the number of replicas within its bounds."""
    await clients.filled()
    target = {"apiVersion": SANDBOX_WARM_POOL.api_version, "kind": SANDBOX_WARM_POOL.kind, "name": POOL}
    bounds = {"minReplicas": SIZE + 2, "maxReplicas": SIZE + 4}
    spec = {"scaleTargetRef": target, **bounds, "metrics": [CPU]}
    await client.create(AUTOSCALER, new(AUTOSCALER, POOL, spec=spec), clients.namespace)

    async def scaled(size: int) -> None:
        async def has_size() -> bool:
            pool = await client.get(SANDBOX_WARM_POOL, POOL, clients.namespace)
            found = await client.get(AUTOSCALER, POOL, clients.namespace)
            conditions = {each["type"]: each for each in (found.get("status") or {}).get("conditions") or ()}
            able = conditions.get("AbleToScale", {})
            return (
                (able.get("status"), able.get("reason")) == ("True", "SucceededGetScale")
                and found["status"].get("currentReplicas") == size
                and pool["spec"]["replicas"] == size
                and (pool.get("status") or {}).get("readyReplicas") == size
            )

        await until(has_size, within=_TIMEOUT)

    await scaled(SIZE + 2)
    lower = MergePatch({"spec": {"minReplicas": 1, "maxReplicas": SIZE}})
    await client.patch(AUTOSCALER, POOL, lower, clients.namespace)
    await scaled(SIZE)
    scale = await client.get(SANDBOX_WARM_POOL, POOL, clients.namespace, subresource="scale")
    pods = await client.list(POD, clients.namespace, label_selector=scale["status"]["selector"])
    assert len(pods["items"]) == SIZE, "what it would count the metrics of"
    await client.delete(AUTOSCALER, POOL, clients.namespace)


async def test_claim_gets_a_warm_sandbox_and_its_deletion_leaves_nothing(
    clients: PersistentClients, client: Client
) -> None:
    await clients.filled()
    await clients.claim(["a"])
    await clients.served(1)
    box = await sandbox_of(client, "a", clients.namespace)
    pod = box["metadata"]["name"]
    await clients.filled()
    await clients.check()
    await client.delete(SANDBOX_CLAIM, "a", clients.namespace)
    await until(lambda: is_gone(client, SANDBOX, box["metadata"]["name"], clients.namespace), within=_TIMEOUT)
    await until(lambda: is_gone(client, POD, pod, clients.namespace), within=_TIMEOUT)


async def test_trace_joins_the_audit_logs_of_both_apis(
    api: AggregatedApi, clients: PersistentClients, client: Client
) -> None:
    """The log of kube-apiserver has the calls of users, once more than ours, and those for pods. Ours has the
    controllers'."""
    await clients.filled()
    await clients.claim(["mine"])
    await clients.served(1)
    await clients.filled()
    box = (await sandbox_of(client, "mine", clients.namespace))["metadata"]["name"]
    note = MergePatch({"metadata": {"labels": {"example.com/note": "x"}}})
    await client.patch(SANDBOX_CLAIM, "mine", note, clients.namespace)
    logs = ("--audit-log", str(api.plane.audit_log), "--audit-log", str(api.directory / AUDIT_LOG))
    arguments = ("trace", "claim", "mine", "-n", clients.namespace, "-o", "json", *logs)

    async def told() -> list[tuple[str, str, str]] | None:
        """The logs of the process are written a moment later."""
        lines = [json.loads(line) for line in (api.directory / AUDIT_LOG).read_text().split("\n")[:-1]]
        if (ADMIN, "patch", "mine") not in [(line["user"], line["verb"], line.get("name")) for line in lines]:
            return None
        result = CliRunner().invoke(main, (*arguments, "--controller-log", str(api.directory / PASS_LOG)))
        assert result.exit_code == 0, result.output
        steps = json.loads(result.stdout)["steps"]
        rows = [(each["method"], each["resource"], each["who"].partition(" ")[0]) for each in steps]
        return rows if ("reconcile", "sandboxclaims/mine", "controller") in rows else None

    rows = await until(told, within=_TIMEOUT)
    assert rows is not None
    calls = Counter(rows)
    assert calls["create", "sandboxclaims/mine", ADMIN] == 1
    assert calls["patch", "sandboxclaims/mine", ADMIN] == 1, "in both logs"
    adopted = rows.index(("patch", f"sandboxes/{box}", "sandpool"))
    assert rows.index(("create", "sandboxclaims/mine", ADMIN)) < adopted
    assert any(row[:2] == ("reconcile", "sandboxclaims/mine") for row in rows[:adopted])
    assert adopted < rows.index(("patch", "sandboxclaims/mine/status", "sandpool"))
    assert ("patch", f"pods/{box}", names.APISERVER) in rows


async def test_foreground_deletion_waits_for_the_pod_in_etcd(clients: PersistentClients, client: Client) -> None:
    """kube-controller-manager holds the claim until the sandbox, and the sandbox until its pod, is gone."""
    await clients.filled()
    await clients.claim(["a"])
    await clients.served(1)
    box = (await sandbox_of(client, "a", clients.namespace))["metadata"]["name"]
    await client.delete(SANDBOX_CLAIM, "a", clients.namespace, propagation_policy="Foreground")
    await until(lambda: is_gone(client, SANDBOX_CLAIM, "a", clients.namespace), within=_TIMEOUT)
    assert await is_gone(client, SANDBOX, box, clients.namespace)
    assert await is_gone(client, POD, box, clients.namespace)


async def test_claim_of_a_deleted_object_in_etcd_is_collected(clients: PersistentClients, client: Client) -> None:
    """The owner of the claim is in etcd, the claim with us, and the pod of its sandbox in etcd again."""
    await clients.filled()
    owner = await client.create(CONFIG_MAP, new(CONFIG_MAP, "job"), clients.namespace)
    metadata = {"ownerReferences": [owner_reference(owner)]}
    claim = new(SANDBOX_CLAIM, "a", metadata=metadata, spec={"warmPoolRef": {"name": POOL}})
    await client.create(SANDBOX_CLAIM, claim, clients.namespace)
    await clients.served(1)
    box = (await sandbox_of(client, "a", clients.namespace))["metadata"]["name"]
    await collected_something(client, clients.namespace)
    assert not await is_gone(client, SANDBOX_CLAIM, "a", clients.namespace), "its owner is there"
    await client.delete(CONFIG_MAP, "job", clients.namespace)
    for type, name in ((SANDBOX_CLAIM, "a"), (SANDBOX, box), (POD, box)):
        await until(lambda type=type, name=name: is_gone(client, type, name, clients.namespace), within=_TIMEOUT)  # type: ignore[misc]


async def test_sandbox_survives_the_deletion_of_its_claim_that_orphans_it(
    clients: PersistentClients, client: Client
) -> None:
    await clients.filled()
    await clients.claim(["a"])
    await clients.served(1)
    box = await sandbox_of(client, "a", clients.namespace)
    name, namespace = box["metadata"]["name"], clients.namespace
    (pod,) = (uid for uid, each in (await pods_by_uid(client, namespace)).items() if each == name)
    await client.delete(SANDBOX_CLAIM, "a", namespace, propagation_policy="Orphan")
    await until(lambda: is_gone(client, SANDBOX_CLAIM, "a", namespace), within=_TIMEOUT)
    await collected_something(client, namespace)
    left = await client.get(SANDBOX, name, namespace)
    assert left["metadata"]["uid"] == box["metadata"]["uid"]
    assert "deletionTimestamp" not in left["metadata"]
    assert "ownerReferences" not in left["metadata"]
    assert pod in await pods_by_uid(client, namespace)
    await client.delete(SANDBOX, name, namespace)


async def test_users_have_the_rights_that_the_cluster_grants(
    clients: PersistentClients, client: Client, endpoint: HttpEndpoint
) -> None:
    alice, namespace = endpoint.client_for("alice"), clients.namespace
    claim = new(SANDBOX_CLAIM, "hers", spec={"warmPoolRef": {"name": POOL}})
    with pytest.raises(Forbidden, match='User "alice" cannot create resource "sandboxclaims"'):
        await alice.create(SANDBOX_CLAIM, claim, namespace)
    role = f"claimer-{namespace}"
    rules = [{"apiGroups": [SANDBOX_CLAIM.group], "resources": ["sandboxclaims"], "verbs": ["create"]}]
    await client.create(CLUSTER_ROLE, new(CLUSTER_ROLE, role, rules=rules))
    binding = {
        "roleRef": {"apiGroup": CLUSTER_ROLE.group, "kind": CLUSTER_ROLE.kind, "name": role},
        "subjects": [{"apiGroup": CLUSTER_ROLE.group, "kind": "Group", "name": USERS["alice"][0]}],
    }
    await client.create(ROLE_BINDING, new(ROLE_BINDING, role, **binding), namespace)

    async def may() -> bool:
        try:
            await alice.create(SANDBOX_CLAIM, claim, namespace)
        except Forbidden:
            return False
        return True

    await until(may, within=_TIMEOUT)
    with pytest.raises(Forbidden):
        await alice.get(SANDBOX_CLAIM, "hers", namespace)
    with pytest.raises(NotFound, match='namespaces "missing" not found'):
        await client.create(SANDBOX_CLAIM, claim, "missing")


async def test_deleted_namespace_is_emptied(api: AggregatedApi, client: Client) -> None:
    name = f"t-{secrets.token_hex(4)}"
    await client.create(NAMESPACE, new(NAMESPACE, name))
    claim = new(SANDBOX_CLAIM, "a", spec={"warmPoolRef": {"name": "none"}})
    await client.create(SANDBOX_CLAIM, claim, name)
    await client.delete(NAMESPACE, name)
    await until(lambda: is_gone(client, NAMESPACE, name), within=_TIMEOUT)
    for type in SANDPOOL:
        left: list[Object] = (await client.list(type))["items"]
        assert name not in {each["metadata"]["namespace"] for each in left}


@pytest.mark.parametrize("crash", [True, False], ids=["killed", "stopped"])
async def test_api_that_is_away_deletes_nothing(
    api: AggregatedApi, clients: PersistentClients, client: Client, crash: bool
) -> None:
    """The garbage collector starts anew meanwhile, so it asks for the owner of every pod."""
    await clients.filled()
    await clients.claim(["a"])
    await clients.served(1)
    await clients.filled()
    before = await pods_by_uid(client, clients.namespace)
    if crash:
        api.process.kill()
    else:
        await asyncio.to_thread(api.process.stop, 30)
    await api.available(client, False)
    with pytest.raises(ServiceUnavailable):
        await client.get(SANDBOX_CLAIM, "a", clients.namespace)
    api.plane.restart(api.plane.controller_manager)
    await collected_something(client, clients.namespace)
    assert await pods_by_uid(client, clients.namespace) == before
    api.process.start()
    await api.available(client)
    await collected_something(client, clients.namespace)
    await clients.served(1)
    await clients.filled()
    await clients.check()
    assert await pods_by_uid(client, clients.namespace) == before
    # One that starts anew follows the API at once. The other would after half a minute.
    api.plane.restart(api.plane.controller_manager)


async def start_empty(api: AggregatedApi, directory: Path) -> str:
    """Start the process on an empty volume; it must end. Returns what it said."""
    command = [str(directory / "empty") if part == api.data_dir else part for part in api.command()]
    empty = Component("empty apiserver", command, directory / "log")
    empty.start()
    try:
        assert await asyncio.to_thread(empty.wait, 90) == 1
    finally:
        empty.stop()
    return empty.tail()


async def test_api_that_comes_back_empty_by_mistake_does_not_serve_and_deletes_nothing(
    api: AggregatedApi, clients: PersistentClients, client: Client, tmp_path: Path
) -> None:
    await clients.filled()
    before = await pods_by_uid(client, clients.namespace)
    await asyncio.to_thread(api.process.stop, 30)
    said = await start_empty(api, tmp_path)
    assert "is empty, and this cluster has its sandboxes" in said
    assert "--accept-lost-sandboxes" in said
    api.plane.restart(api.plane.controller_manager)
    await collected_something(client, clients.namespace)
    assert await pods_by_uid(client, clients.namespace) == before
    api.process.start()
    await api.available(client)
    await clients.filled()
    assert await pods_by_uid(client, clients.namespace) == before
    api.plane.restart(api.plane.controller_manager)


async def test_volume_claim_of_a_suspended_sandbox_survives_an_api_that_comes_back_empty(
    api: AggregatedApi, clients: PersistentClients, client: Client, tmp_path: Path
) -> None:
    """The sandbox has no pod. Its volume claim alone must keep an empty API from being served."""
    storage = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    spec = {"podTemplate": pod_template(), "volumeClaimTemplates": [{"metadata": {"name": "work"}, "spec": storage}]}
    box = await client.create(SANDBOX, new(SANDBOX, "mine", spec=spec), clients.namespace)

    async def volumes() -> list[str]:
        """Those that nothing deletes: the finalizer of every volume claim keeps the others in this cluster."""
        found = (await client.list(PERSISTENT_VOLUME_CLAIM, clients.namespace))["items"]
        kept = [each for each in found if "deletionTimestamp" not in each["metadata"]]
        return [each["metadata"]["uid"] for each in kept if owned_by(each, box)]

    async def has_all() -> bool:
        return bool(await volumes()) and not await is_gone(client, POD, "mine", clients.namespace)

    await until(has_all, within=_TIMEOUT)
    suspend = MergePatch({"spec": {"operatingMode": "Suspended"}})
    await client.patch(SANDBOX, "mine", suspend, clients.namespace)
    await until(lambda: is_gone(client, POD, "mine", clients.namespace), within=_TIMEOUT)
    before = await volumes()
    await asyncio.to_thread(api.process.stop, 30)
    await client.delete(LEASE, names.LEASE, names.NAMESPACE)  # with what the cluster remembers of the volume
    assert "of sandboxes" in await start_empty(api, tmp_path)
    api.plane.restart(api.plane.controller_manager)
    await collected_something(client, clients.namespace)
    assert await volumes() == before
    api.process.start()
    await api.available(client)
    assert await volumes() == before
    api.plane.restart(api.plane.controller_manager)
    await client.delete(SANDBOX, "mine", clients.namespace)

    async def collected() -> bool:
        return not await volumes()

    await until(collected, within=_TIMEOUT)  # only now
    for each in (await client.list(PERSISTENT_VOLUME_CLAIM, clients.namespace))["items"]:
        release = MergePatch({"metadata": {"finalizers": None}})
        await client.patch(PERSISTENT_VOLUME_CLAIM, each["metadata"]["name"], release, clients.namespace)


async def test_stray_definitions_are_deleted_and_pods_stay(
    api: AggregatedApi, clients: PersistentClients, client: Client
) -> None:
    """`kubectl apply -k deploy` by mistake. The refusal after a restart tells what to delete."""
    await clients.filled()
    await clients.claim(["a"])
    await clients.served(1)
    await clients.filled()
    before = await pods_by_uid(client, clients.namespace)
    stray = definitions(InstallOptions())
    await apply(client, stray)
    await asyncio.to_thread(api.process.stop, 30)
    api.plane.restart(api.plane.controller_manager)
    api.process.start()
    assert await asyncio.to_thread(api.process.wait, 90) == 1
    told = re.search(r"Do not delete the APIServices.*: kubectl delete crd (\S+ \S+ \S+ [\w.-]+)", api.said())
    assert told is not None, api.said()
    assert {each["metadata"]["name"] for each in stray} == set(told[1].split())
    await collected_something(client, clients.namespace)
    assert await pods_by_uid(client, clients.namespace) == before
    for name in told[1].split():
        await client.delete(CUSTOM_RESOURCE_DEFINITION, name)
    for name in told[1].split():  # kube-apiserver retries a removal that failed later and later
        await until(lambda name=name: is_gone(client, CUSTOM_RESOURCE_DEFINITION, name), within=200)  # type: ignore[misc]
    await collected_something(client, clients.namespace)
    assert await pods_by_uid(client, clients.namespace) == before
    api.process.start()
    await api.available(client)
    await clients.served(1)
    await clients.filled()
    await collected_something(client, clients.namespace)
    assert await pods_by_uid(client, clients.namespace) == before
    await clients.check()
    api.plane.restart(api.plane.controller_manager)


async def test_installation_is_removed_after_the_last_pod(
    api: AggregatedApi, clients: PersistentClients, client: Client
) -> None:
    """All objects but the Service, which this cluster without kube-proxy has in another form."""
    choice = InstallOptions(storage=await choose_storage(client, None))
    assert choice.storage == "aggregated"
    objects = [each for each in chosen(choice, router=False, monitored=False) if each["kind"] != SERVICE.kind]
    told: list[str] = []
    installer = Installer(client, SystemClock(), told.append, force=True)
    await installer.install(objects)
    assert "statefulset.apps/agent-sandbox-apiserver created" in told
    await api.register(client)  # its APIServices have another port here
    await api.available(client)
    await clients.filled()
    await clients.claim(["a"])
    await clients.served(1)
    with pytest.raises(InstallError, match=f"would lose their sandboxes: {clients.namespace}/a"):
        await Remover(client, SystemClock(), told.append).remove(objects)
    told.clear()
    await Remover(client, SystemClock(), told.append, keep_kinds=True).remove(objects)
    assert "namespace/agent-sandbox-system kept: it contains the volume with the sandboxes" in told
    assert not any("apiservice" in line for line in told)
    await api.register(client)
    await api.available(client)
    await clients.served(1)
    told.clear()
    await Remover(client, SystemClock(), told.append, with_claims=True).remove(objects)
    assert "1 sandboxclaims deleted" in told
    unregistered = f"apiservice.apiregistration.k8s.io/{API_SERVICES[0]} deleted"
    assert told.index("1 sandboxclaims deleted") < told.index(unregistered)
    assert await pods_by_uid(client, clients.namespace) == {}
    await until(lambda: is_gone(client, NAMESPACE, names.NAMESPACE), within=_TIMEOUT)
    await asyncio.to_thread(api.process.stop, 30)
    await api.start(client)  # for the other tests
