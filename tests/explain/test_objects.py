"""``why`` for sandboxes, pods, pools and templates, in a world with real controllers and a simulated node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import pytest_asyncio

from sandpool.api.kinds import POD, SANDBOX, SANDBOX_WARM_POOL
from sandpool.api.resource import Object
from sandpool.explain.claim import Link
from sandpool.explain.objects import _in_order, explain_pod, explain_pool, explain_sandbox, explain_template
from sandpool.kube.errors import Forbidden, NotFound
from sandpool.kube.transport import Request
from sandpool.node.simulated import NO_NODE, Fate
from sandpool.service.service import Service
from sandpool.testing.backend import InProcessBackend
from sandpool.testing.world import World
from tests.service.conftest import play
from tests.support.fake_pod_client import FakePodClient


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    backend = await InProcessBackend.start(tmp_path)
    world = World(backend)
    await world.start()
    yield world
    await world.stop()
    await backend.close()


@pytest.fixture
def service(world: World) -> Service:
    return Service(world.client, FakePodClient(play), world.namespace)


def texts(explanation: object) -> str:
    return "\n".join(link.text for link in explanation.chain)  # type: ignore[attr-defined]


async def test_a_full_pool_its_template_and_its_members(world: World, service: Service) -> None:
    await world.template()
    await service.pools.create("python", "python", 2)
    await service.pools.wait_ready("python", 2, 30.0)
    now = world.clock.now()
    pool = await explain_pool(world.client, world.namespace, "python", now)
    assert (pool.sentence, pool.advice) == ('Pool "python": 2 of 2 sandboxes are ready.', "")
    assert 'created, with sandboxes of template "python"' in texts(pool)
    template = await explain_template(world.client, world.namespace, "python")
    assert template.sentence == 'Template "python" is used by pool python with 2 ready sandboxes.'
    member = (await service.sandboxes.list())[0]
    sandbox = await explain_sandbox(world.client, world.namespace, member.name, now)
    assert sandbox.sentence == f'Sandbox "{member.name}" is ready, idle in pool "python".'
    assert 'created from template "python"' in texts(sandbox)
    pod = await explain_pod(world.client, world.namespace, member.pod)
    assert pod.sentence == f'Pod "{member.pod}" is ready on node node.'
    claim = await service.claims.create("python", name="mine")
    claimed = await explain_sandbox(world.client, world.namespace, claim.sandbox, now)
    assert claimed.sentence == f'Sandbox "{claim.sandbox}" is ready and belongs to claim "mine".'


async def test_members_that_find_no_node_are_the_reason_of_a_pool(world: World, service: Service) -> None:
    world.node.fate = lambda pod: Fate.UNSCHEDULABLE
    await world.template()
    await service.pools.create("python", "python", 2)

    async def told() -> bool:
        explanation = await explain_pool(world.client, world.namespace, "python", world.clock.now())
        return NO_NODE.rstrip(".") in explanation.sentence and "2 members are not ready" in texts(explanation)

    await world.until(told)
    member = (await service.sandboxes.list())[0]
    sandbox = await explain_sandbox(world.client, world.namespace, member.name, world.clock.now())
    assert sandbox.sentence == f'Sandbox "{member.name}" is not ready: its pod cannot be scheduled: {NO_NODE}'
    assert sandbox.advice == "add nodes, or request less in the template"
    pod = await explain_pod(world.client, world.namespace, member.pod)
    assert pod.sentence == f'Pod "{member.pod}" has no node: {NO_NODE}.'


_IMAGE = {"waiting": {"reason": "ImagePullBackOff", "message": "manifest unknown"}}
_CRASH = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}
_END = {"reason": "Error", "exitCode": 3, "finishedAt": "2026-01-01T00:00:00Z", "message": "no module named app"}
_QUOTA = 'pods "x" is forbidden: exceeded quota: small'


def _container(**state: object) -> Object:
    container = {"name": "main", "image": "i", "imageID": "", "ready": False, "restartCount": 1}
    return {"containerStatuses": [{**container, **state}]}


@pytest.mark.parametrize(
    ("state", "advice"),
    [
        (_IMAGE, "check that the template's image exists and may be pulled"),
        (_CRASH, "look at its log: sandpool logs single"),
        ({"waiting": {"reason": "ContainerCreating"}}, ""),
    ],
    ids=["image", "crash", "creating"],
)
async def test_advice_about_a_pod_fits_what_its_container_waits_for(world: World, state: Object, advice: str) -> None:
    world.node.fate = lambda pod: Fate.HANGING
    await world.create(POD, "single", spec={"containers": [{"name": "main", "image": "i"}]})
    await world.patch(POD, "single", {"status": _container(state=state, restartCount=0)}, "status")
    assert (await explain_pod(world.client, world.namespace, "single")).advice == advice


def is_creation_of_a_pod(request: Request) -> bool:
    return request.method == "POST" and request.path.endswith("/pods")


@pytest.mark.parametrize(
    ("status", "cause", "why"),
    [
        (
            _container(state=_IMAGE),
            'container "main": ImagePullBackOff: manifest unknown',
            "an image cannot be pulled: ImagePullBackOff: manifest unknown",
        ),
        (
            _container(state=_CRASH, lastState={"terminated": _END}),
            'container "main" ended with exit code 3 (Error): "no module named app"',
            'container "main" was restarted once: CrashLoopBackOff: it ended with exit code 3: "no module named app"',
        ),
        (None, _QUOTA, _QUOTA),
    ],
    ids=["image", "crash", "quota"],
)
async def test_pool_tells_the_reason_of_its_members_in_its_condition_and_in_why(
    world: World, service: Service, status: Object | None, cause: str, why: str
) -> None:
    if status is None:
        world.wire.fault = lambda request: Forbidden(cause) if is_creation_of_a_pod(request) else None
    world.node.fate = lambda pod: Fate.HANGING
    await world.template()
    await service.pools.create("python", "python", 1)

    async def pods() -> list[Object]:
        return await world.all(POD)

    if status is not None:
        (pod,) = await world.until(pods)
        await world.patch(POD, pod["metadata"]["name"], {"status": status}, "status")

    async def told() -> bool:
        conditions = await world.conditions(SANDBOX_WARM_POOL, "python")
        return cause in conditions.get("Progressing", ("", "", ""))[2]

    await world.until(told)
    explanation = await explain_pool(world.client, world.namespace, "python", world.clock.now())
    assert why in explanation.sentence


async def test_a_suspended_sandbox_and_a_pool_without_a_template(world: World, service: Service) -> None:
    await world.sandbox("own", operatingMode="Suspended")
    explanation = await explain_sandbox(world.client, world.namespace, "own", world.clock.now())
    assert explanation.sentence == 'Sandbox "own" is not ready: it is suspended.'
    assert explanation.advice == "resume it: sandpool resume own"
    await world.create(SANDBOX_WARM_POOL, "bare", spec={"replicas": 1, "sandboxTemplateRef": {"name": "no"}})
    pool = await explain_pool(world.client, world.namespace, "bare", world.clock.now())
    assert pool.sentence.startswith('Pool "bare": 0 of 1 sandboxes are ready: its template "no" does not exist')
    await world.template(name="idle")
    assert "is used by no pool" in (await explain_template(world.client, world.namespace, "idle")).sentence


async def test_an_object_that_does_not_exist(world: World) -> None:
    for ask in (
        explain_sandbox(world.client, world.namespace, "no", world.clock.now()),
        explain_pool(world.client, world.namespace, "no", world.clock.now()),
        explain_template(world.client, world.namespace, "no"),
        explain_pod(world.client, world.namespace, "no"),
    ):
        with pytest.raises(NotFound):
            await ask


async def test_a_pod_that_failed(world: World, service: Service) -> None:
    world.node.fate = lambda pod: Fate.FAILED
    await world.sandbox("own")

    async def ended() -> bool:
        box = await world.client.get(SANDBOX, "own", world.namespace)
        return any(each["reason"] == "PodFailed" for each in (box.get("status") or {}).get("conditions", []))

    await world.until(ended)
    explanation = await explain_sandbox(world.client, world.namespace, "own", world.clock.now())
    assert explanation.sentence == 'Sandbox "own" is not ready: its pod has ended: Pod failed.'


async def test_volume_that_is_mounted_nowhere_is_named(world: World, service: Service) -> None:
    volumes = [{"name": "data", "emptyDir": {}}, {"name": "used", "emptyDir": {}}, {"name": "early", "emptyDir": {}}]
    image = "example.com/image:1"
    main = {"name": "main", "image": image, "volumeMounts": [{"name": "used", "mountPath": "/used"}]}
    first = {"name": "first", "image": image, "volumeMounts": [{"name": "early", "mountPath": "/early"}]}
    pod = {"spec": {"containers": [main], "initContainers": [first], "volumes": volumes}}
    claims = [{"metadata": {"name": "disk"}, "spec": {"accessModes": ["ReadWriteOnce"]}}]
    await world.template(podTemplate=pod, volumeClaimTemplates=claims)
    await service.pools.create("python", "python", 0)
    template = await explain_template(world.client, world.namespace, "python")
    pool = await explain_pool(world.client, world.namespace, "python", world.clock.now())
    for explained in (template, pool):
        told = [line for line in texts(explained).splitlines() if line.startswith("warning: ")]
        assert told == [
            f'warning: volume "{name}" of the template is mounted in no container' for name in ("data", "disk")
        ]
    assert template.advice == "add volumeMounts to a container of the template, or remove the volume"


def test_links_of_one_second_keep_the_order_of_cause_and_effect() -> None:
    second = datetime(2026, 1, 1, tzinfo=UTC)
    event, condition = Link(second + timedelta(microseconds=900_000), "Scheduled"), Link(second, "Ready is True")
    earlier, untimed = Link(second - timedelta(seconds=1), "created"), Link(None, "2 members are not ready")
    assert _in_order([untimed, event, condition, earlier]) == [earlier, event, condition, untimed]
