"""The claim controller on a real API: one sandbox for each claim, in two writes, despite failures."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from sandpool.api.kinds import SANDBOX, SANDBOX_CLAIM
from sandpool.api.labels import CLAIM_FIRST_READY_AT, LAUNCH_TYPE, LAUNCH_WARM, SAFE_TO_EVICT, SANDBOX_NAME
from sandpool.api.resource import Key, Object
from sandpool.api.warmpool import RECREATE
from sandpool.engine.controller import Result
from sandpool.kube.errors import NotFound
from sandpool.kube.transport import Request
from sandpool.testing.faulty_transport import Fault
from sandpool.testing.waiting import until
from sandpool.testing.world import NAMESPACE, World, owner_of
from tests.support.held_events import hold_events


def about_claims(requests: list[Request]) -> list[Request]:
    """Return the writes of all controllers that claims cause."""
    return [each for each in requests if "/sandboxclaims/" in each.path or is_adoption(each)]


def is_adoption(request: Request) -> bool:
    body = request.body if isinstance(request.body, dict) else {}
    references = (body.get("metadata") or {}).get("ownerReferences") or [{}]
    return request.method == "PATCH" and "/sandboxes/" in request.path and references[0].get("kind") == "SandboxClaim"


def events_about(world: World, claim: str, since: int) -> list[Object]:
    """The events the controllers wrote about a claim."""
    bodies = [
        each.body for each in world.wire.requests[since:] if each.path.endswith("/events") and each.method == "POST"
    ]
    return [body for body in bodies if isinstance(body, dict) and body["regarding"]["name"] == claim]


def is_evictable(world: World, pod: str) -> bool:
    view = world.controllers.caches.pods.get(Key(NAMESPACE, pod))
    return view is None or SAFE_TO_EVICT in view.annotations


Reconcile = Callable[[Key], Awaitable[Result]]


class ReconcileCounts:
    """Counts the reconciles of each key by each controller, from now on."""

    def __init__(self, world: World) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        for which in ("claims", "sandboxes"):
            controller = getattr(world.controllers, which).controller
            controller.reconcile = self._counting(which, controller.reconcile)

    def of(self, which: str, name: str) -> int:
        return self._counts[which, name]

    def _counting(
        self, which: str, reconcile: Callable[[Key], Awaitable[Result]]
    ) -> Callable[[Key], Awaitable[Result]]:
        def counting(key: Key) -> Awaitable[Result]:
            self._counts[which, key.name] += 1
            return reconcile(key)

        return counting


def is_warm(box: Object) -> bool:
    return bool(box["metadata"]["labels"].get(LAUNCH_TYPE) == LAUNCH_WARM)


def assert_each_has_its_own(served: dict[str, Object]) -> None:
    assert all(owner_of(box) == ("SandboxClaim", claim) for claim, box in served.items())
    assert len({box["metadata"]["name"] for box in served.values()}) == len(served)


async def test_warm_claim_costs_two_writes_until_ready_and_three_and_an_event_in_all(world: World) -> None:
    await world.template()
    await world.pool(3)
    before = len(world.wire.requests)
    reconciles = ReconcileCounts(world)

    await world.claim("mine")
    box = (await world.served(1))["mine"]
    name = box["metadata"]["name"]
    await world.filled(3)
    await world.eventually(lambda: not is_evictable(world, name))
    await world.controllers.claims.annotations.queue.settled()
    await world.controllers.recorder.stop()

    assert is_warm(box)
    written = [
        (each.method, each.path.partition(f"/{NAMESPACE}/")[2])
        for each in world.writes(before)
        if f"/{name}" in each.path or "/mine" in each.path
    ]
    assert written[:2] == [("PATCH", f"sandboxes/{name}"), ("PATCH", "sandboxclaims/mine/status")]
    assert written[2:] == [("PATCH", f"pods/{name}")]
    assert [each["reason"] for each in events_about(world, "mine", before)] == ["SandboxAdopted"]
    assert reconciles.of("claims", "mine") <= 2
    assert reconciles.of("sandboxes", name) <= 2

    claim = await world.client.get(SANDBOX_CLAIM, "mine", NAMESPACE)
    assert claim["metadata"]["annotations"][SANDBOX_NAME] == name
    assert CLAIM_FIRST_READY_AT in claim["metadata"]["annotations"]
    stored = await world.client.get(SANDBOX, name, NAMESPACE)
    assert {each["observedGeneration"] for each in stored["status"]["conditions"]} == {
        stored["metadata"]["generation"]
    }, "so no status has to be written later"


async def test_every_claim_of_a_burst_gets_its_own_warm_sandbox(world: World) -> None:
    await world.template()
    await world.pool(60)
    before = len(world.wire.requests)

    await asyncio.gather(*(world.claim(f"claim-{number}") for number in range(50)))
    served = await world.served(50)

    assert_each_has_its_own(served)
    assert all(map(is_warm, served.values()))
    adoptions = [each for each in world.writes(before) if is_adoption(each)]
    assert len(adoptions) == 50, "no conflict, so nothing was written twice"
    assert world.controllers.claims.controller.failures == 0


async def test_burst_larger_than_the_pool_is_served(world: World) -> None:
    await world.template()
    await world.pool(5)

    await asyncio.gather(*(world.claim(f"claim-{number}") for number in range(12)))
    served = await world.served(12)

    assert_each_has_its_own(served)
    assert sum(map(is_warm, served.values())) >= 5
    await world.filled(5)


async def test_claim_without_pool_waits_for_it(world: World) -> None:
    await world.claim("early")
    await world.template()
    await world.pool(1, filled=False)

    assert_each_has_its_own(await world.served(1))


async def test_claim_with_its_own_volumes_gets_a_cold_sandbox(world: World) -> None:
    await world.template()
    await world.pool(1)
    body = {"name": "data", "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}
    await world.claim("own", volumeClaimTemplates=[{"metadata": {"name": body["name"]}, "spec": body["spec"]}])

    async def refused() -> bool:
        claim = await world.client.get(SANDBOX_CLAIM, "own", NAMESPACE)
        conditions = (claim.get("status") or {}).get("conditions") or []
        return any(each["reason"] == "VolumeClaimTemplatesError" for each in conditions)

    await until(refused)
    await world.filled(1)


async def test_deleting_a_claim_deletes_only_its_sandbox(world: World) -> None:
    await world.template()
    await world.pool(2)
    await world.claim("short")
    box = (await world.served(1))["short"]
    await world.filled(2)

    await world.client.delete(SANDBOX_CLAIM, "short", NAMESPACE)

    async def gone() -> bool:
        try:
            await world.client.get(SANDBOX, box["metadata"]["name"], NAMESPACE)
        except NotFound:
            return True
        return False

    await until(gone)
    await world.filled(2)
    assert len(world.controllers.claims.assigner) == 2


async def test_recreate_never_assigns_the_former_template(world: World) -> None:
    await world.template()
    await world.pool(4, strategy=RECREATE)

    await world.change_template("example.com/image:2")
    await asyncio.gather(*(world.claim(f"claim-{number}") for number in range(4)))
    served = await world.served(4)

    images = {box["spec"]["podTemplate"]["spec"]["containers"][0]["image"] for box in served.values()}
    assert images == {"example.com/image:2"}


async def test_lost_response_binds_the_same_sandbox(world: World) -> None:
    """R3, R5: it is not known whether the sandbox was written. It was, and no other is taken."""
    await world.template()
    await world.pool(3)
    lost: list[Request] = []

    def lose(request: Request) -> Fault | None:
        if is_adoption(request) and not lost:
            lost.append(request)
            return Fault.LOSE
        return None

    world.wire.fault = lose
    await world.claim("mine")
    served = await world.served(1)
    await world.filled(3)

    assert lost[0].path.endswith(served["mine"]["metadata"]["name"])
    assert [owner_of(box) for box in await world.all(SANDBOX)].count(("SandboxClaim", "mine")) == 1


async def test_lost_response_costs_no_second_sandbox_when_the_template_changes(world: World) -> None:
    """R3, R8: what is not known is asked for before another is taken, also if this one would not be given any more."""
    await world.template()
    await world.pool(1, strategy=RECREATE)
    original = world.wire.transport.request
    release, served = hold_events(world, SANDBOX), asyncio.Event()
    lost: list[str] = []

    async def lose(request: Request) -> object:
        if request.method == "DELETE":
            await served.wait()  # the pool would be in the way
        answer = await original(request)
        if is_adoption(request) and not lost:
            lost.append(request.path.rsplit("/", 1)[-1])
            await world.change_template("example.com/image:2")
            raise ConnectionError("the answer was lost")
        return answer

    world.wire.transport.request = lose  # type: ignore[method-assign]
    await world.claim("mine")
    box = (await world.served(1))["mine"]
    assert [box["metadata"]["name"]] == lost
    assert sum(is_adoption(request) for request in world.wire.requests) == 1
    served.set()
    release()


async def test_ambiguous_creation_is_refreshed(world: World) -> None:
    await world.template()
    await world.pool(0, filled=False)
    release = hold_events(world, SANDBOX)
    lost: list[Request] = []

    def lose(request: Request) -> Fault | None:
        if request.method == "POST" and request.path.endswith("/sandboxes") and not lost:
            lost.append(request)
            return Fault.LOSE
        return None

    world.wire.fault = lose
    await world.claim("mine")
    await world.eventually(lambda: [each for each in world.wire.requests if each.path.endswith("/mine/status")])
    made = [each for each in world.wire.requests if each.method == "POST" and each.path.endswith("/sandboxes")]
    assert made == lost, "and the watch has not told of it"
    assert [each.path.rsplit("/", 2)[1:] for each in world.wire.requests if each.method == "GET"].count(
        ["sandboxes", "mine"]
    ) == 1
    release()
    await world.served(1)


async def test_deleted_claim_is_not_given_a_replacement_sandbox(world: World) -> None:
    """The deletion event of the sandbox arrives before that of the claim it was collected with."""
    await world.template()
    await world.pool(1)
    await world.claim("mine")
    box = (await world.served(1))["mine"]["metadata"]["name"]
    await world.filled(1)
    release = hold_events(world, SANDBOX_CLAIM)
    since = len(world.wire.requests)

    await world.client.delete(SANDBOX_CLAIM, "mine", NAMESPACE)
    await world.eventually(lambda: Key(NAMESPACE, box) not in world.controllers.caches.sandboxes)
    await world.controllers.claims.controller.queue.settled()

    assert not any(map(is_adoption, world.wire.requests[since:]))
    asked = [each.path.rsplit("/", 1)[-1] for each in world.wire.requests[since:] if each.method == "GET"]
    assert asked == ["mine"], "the API has been asked, once"
    assert Key(NAMESPACE, "mine") not in world.controllers.caches.claims
    release()


async def test_claim_with_a_deleted_sandbox_gets_another(world: World) -> None:
    await world.template()
    await world.pool(1)
    await world.claim("mine")
    first = (await world.served(1))["mine"]["metadata"]["name"]
    await world.filled(1)

    await world.client.delete(SANDBOX, first, NAMESPACE)
    await world.gone(SANDBOX, first)

    async def other() -> bool:
        boxes = [box for box in await world.all(SANDBOX) if owner_of(box) == ("SandboxClaim", "mine")]
        return [box["metadata"]["name"] for box in boxes] not in ([], [first])

    await until(other)


async def test_request_that_did_not_arrive_is_repeated(world: World) -> None:
    await world.template()
    await world.pool(2)
    cut: list[Request] = []

    def fail(request: Request) -> Fault | None:
        if (is_adoption(request) or request.path.endswith("mine/status")) and len(cut) < 3:
            cut.append(request)
            return Fault.CUT
        return None

    world.wire.fault = fail
    await world.claim("mine")
    assert_each_has_its_own(await world.served(1))
    await world.filled(2)
    assert len(cut) == 3


async def test_sandbox_deleted_before_adoption_is_replaced(world: World) -> None:
    """R3, R4: deleted between the decision and the write."""
    await world.template()
    await world.pool(2)
    original = world.wire.transport.request
    gone: list[str] = []

    async def delete_first(request: Request) -> object:
        if is_adoption(request) and not gone:
            gone.append(request.path.rsplit("/", 1)[-1])
            await world.client.delete(SANDBOX, gone[0], NAMESPACE)
        return await original(request)

    world.wire.transport.request = delete_first  # type: ignore[method-assign]
    await world.claim("mine")
    served = await world.served(1)

    assert_each_has_its_own(served)
    assert served["mine"]["metadata"]["name"] != gone[0]
    await world.filled(2)


async def test_expired_claim_is_deleted_with_its_sandbox(world: World) -> None:
    await world.template()
    await world.pool(1)
    await world.claim("old", lifecycle={"shutdownTime": "2020-01-01T00:00:00Z", "shutdownPolicy": "Delete"})

    async def gone() -> bool:
        return not await world.all(SANDBOX_CLAIM)

    await until(gone)
    await world.filled(1)


async def test_claim_has_work_after_a_reconcile_only_if_it_shows_what_was_not_reported(world: World) -> None:
    """What a claim shows at the end of its reconcile is either the echo of the report or the change of another writer,
    which no other event would correct."""
    await world.template()
    await world.pool(1)
    await world.claim("mine")
    await world.served(1)
    claims, key = world.controllers.claims, Key(NAMESPACE, "mine")
    await claims.controller.queue.settled()
    assert not claims._has_work(key)

    claim = await world.get(SANDBOX_CLAIM, "mine")
    later = {**claim["metadata"], "resourceVersion": str(int(claim["metadata"]["resourceVersion"]) + 1000)}
    world.controllers.caches.claims.observe({**claim, "metadata": later, "status": {}})
    assert claims._has_work(key), "another status"

    annotated = {**later, "resourceVersion": str(int(later["resourceVersion"]) + 1)}
    annotated["annotations"] = {**later["annotations"], SANDBOX_NAME: "another"}
    world.controllers.caches.claims.observe({**claim, "metadata": annotated})
    assert claims._has_work(key), "the name of another sandbox"


async def test_claim_has_work_after_a_reconcile_if_another_sandbox_became_its_own(world: World) -> None:
    await world.template()
    await world.pool(1)
    await world.claim("mine")
    sandbox = (await world.served(1))["mine"]
    claims = world.controllers.claims
    await claims.controller.queue.settled()
    metadata = {**sandbox["metadata"], "name": "another", "uid": "another", "resourceVersion": "1000000"}
    world.controllers.caches.sandboxes.observe({**sandbox, "metadata": metadata})
    assert claims._has_work(Key(NAMESPACE, "mine"))
