"""Which pod a request may go to: that of a claimed sandbox, and never one that the request names."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from sandpool.api.kinds import POD, SANDBOX, SANDBOX_CLAIM, SANDBOX_WARM_POOL
from sandpool.api.resource import Object
from sandpool.api.times import timestamp
from sandpool.kube.client import MergePatch
from sandpool.kube.errors import NotFound
from sandpool.router.destination import Destination, RequestRejected
from sandpool.router.targets import SandboxResolver, Target
from sandpool.server.api_server import ApiServer
from sandpool.testing.clock import ManualClock
from sandpool.testing.objects import new, pod, pod_template
from tests.support.api_objects import owner_reference
from tests.support.sandbox_objects import pod_status, sandbox, sandbox_pod, stored

OWN = "10.231.0.5"
OTHERS = "10.231.0.6"


@pytest.fixture
def targets(server: ApiServer) -> SandboxResolver:
    """Targets with a claimed sandbox and an unclaimed one."""
    targets = SandboxResolver(server.client(), ManualClock(), Random(0))
    claim = stored(SANDBOX_CLAIM, "mine")
    for name, address in (("box", OWN), ("other", OTHERS)):
        owned = sandbox(name)
        owned["metadata"]["ownerReferences"] = _owned_by(claim)
        saw(targets, owned, ready_pod(owned, address))
    return targets


def saw(targets: SandboxResolver, box: Object, pod: Object | None = None) -> None:
    targets.sandboxes.observe(box)
    if pod is not None:
        targets.pods.observe(pod)


def ready_pod(box: Object, address: str, **metadata: Any) -> Object:
    pod = sandbox_pod(box, status=pod_status("Running", ready=True, ips=[address]))
    return {**pod, "metadata": {**pod["metadata"], **metadata}}


def _owned_by(owner: Object) -> list[Object]:
    return [
        {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "controller": True,
        }
    ]


def wanted(name: str = "box", hint: str = "", uid: str = "", namespace: str = "default") -> Destination:
    return Destination(namespace, name, 8888, 60.0, hint, uid)


def refused(targets: SandboxResolver, destination: Destination) -> tuple[int, str]:
    with pytest.raises(RequestRejected) as refusal:
        targets.find(destination)
    return refusal.value.status, refusal.value.detail


def test_claimed_sandbox_is_resolved(targets: SandboxResolver) -> None:
    assert targets.find(wanted()) == Target("default", "box", "pod-box", OWN)
    assert targets.find(wanted(hint=OWN)).address == OWN
    assert targets.find(wanted(uid="sandbox-box")).address == OWN


@pytest.mark.parametrize(
    ("hint", "status"),
    [
        ("127.0.0.1", 400),
        ("::1", 400),
        ("0.0.0.0", 400),
        ("169.254.169.254", 400),  # where clouds keep their secrets
        ("fe80::1", 400),
        ("224.0.0.1", 400),
        (OTHERS, 503),
        ("10.0.0.1", 503),
        ("8.8.8.8", 503),
        ("::ffff:127.0.0.1", 503),
    ],
)
def test_foreign_address_is_rejected(targets: SandboxResolver, hint: str, status: int) -> None:
    assert refused(targets, wanted(hint=hint))[0] == status


def test_former_address_is_ignored(targets: SandboxResolver) -> None:
    box = sandbox("box")
    saw(targets, box, ready_pod(box, "10.231.0.9", uid="another", resourceVersion="5"))
    assert targets.find(wanted(hint=OWN)).address == "10.231.0.9"
    assert targets.find(wanted(hint="10.231.0.9")).address == "10.231.0.9"


def test_unclaimed_pool_sandbox_is_not_found(targets: SandboxResolver) -> None:
    waiting = sandbox("waiting")
    waiting["metadata"]["ownerReferences"] = _owned_by(stored(SANDBOX_WARM_POOL, "pool"))
    saw(targets, waiting, ready_pod(waiting, "10.231.0.7"))
    for destination in (
        wanted("waiting"),
        wanted("waiting", hint="10.231.0.7"),
        wanted("waiting", uid="sandbox-waiting"),
    ):
        assert refused(targets, destination) == (404, "Sandbox waiting not found in namespace default.")


def test_namesake_in_another_namespace_is_another_sandbox(targets: SandboxResolver) -> None:
    assert refused(targets, wanted(uid="of-before"))[0] == 404
    assert refused(targets, wanted(namespace="elsewhere"))[0] == 404


def test_pod_of_the_same_name_without_ownership_is_ignored(targets: SandboxResolver) -> None:
    box = sandbox("box")
    foreign = ready_pod(box, OWN, uid="foreign", resourceVersion="7", ownerReferences=[])
    targets.pods.observe(foreign)
    assert refused(targets, wanted()) == (503, "Sandbox box has no running pod.")


def test_terminating_or_unready_sandbox_is_unavailable(targets: SandboxResolver) -> None:
    box = sandbox("box")
    going = ready_pod(box, OWN, resourceVersion="7", deletionTimestamp="2026-01-01T00:00:00Z")
    targets.pods.observe(going)
    assert refused(targets, wanted()) == (503, "Sandbox box has no running pod.")
    other = sandbox("other")
    starting = sandbox_pod(other, status=pod_status("Running", ips=[OTHERS]))
    targets.pods.observe({**starting, "metadata": {**starting["metadata"], "resourceVersion": "8"}})
    assert refused(targets, wanted("other")) == (503, "Sandbox other is not ready.")


def test_suspended_sandbox_is_unavailable(targets: SandboxResolver) -> None:
    box = sandbox("box", spec={"operatingMode": "Suspended"})
    box["metadata"]["resourceVersion"] = "8"
    targets.sandboxes.observe(box)
    assert targets.find(wanted()).address == OWN  # until its pod goes
    targets.pods.observe(ready_pod(box, OWN, resourceVersion="9", deletionTimestamp="2026-01-01T00:00:00Z"))
    assert refused(targets, wanted()) == (409, "Sandbox box is suspended.")
    box = sandbox("box")
    box["metadata"]["resourceVersion"] = "10"
    targets.sandboxes.observe(box)
    assert refused(targets, wanted()) == (503, "Sandbox box has no running pod.")  # it will have one
    targets.pods.observe(ready_pod(box, "10.231.0.9", uid="another", resourceVersion="11"))
    # Clients keep the address that they know through an answer like that.
    assert targets.find(wanted(hint=OWN)).address == "10.231.0.9"


def test_deleted_sandbox_is_not_found(targets: SandboxResolver) -> None:
    box = sandbox("box")
    targets.sandboxes.observe_deletion({**box, "metadata": {**box["metadata"], "resourceVersion": "9"}})
    assert refused(targets, wanted()) == (404, "Sandbox box not found in namespace default.")


def lost(targets: SandboxResolver, version: str, when: str = "2026-01-01T00:00:00Z", name: str = "box") -> None:
    box = sandbox(name)
    condition = {"type": "StateLost", "status": "True", "reason": "OOMKilled", "message": f"Killed at {when}."}
    box["status"] = {"conditions": [{**condition, "lastTransitionTime": when}]}
    box["metadata"]["resourceVersion"] = version
    targets.sandboxes.observe(box)


def test_first_request_after_a_state_loss_is_rejected_with_the_reason(targets: SandboxResolver) -> None:
    lost(targets, "10")
    status, detail = refused(targets, wanted())
    assert status == 410
    assert detail.startswith("Sandbox box has lost its state. Killed at 2026-01-01T00:00:00Z. (StateLost: OOMKilled")
    assert targets.find(wanted()).address == OWN, "told once"
    assert targets.find(wanted("other")).address == OTHERS
    lost(targets, "11", "2026-01-01T00:01:00Z")
    assert refused(targets, wanted())[0] == 410, "another loss"


def test_client_that_accepts_state_losses_is_not_rejected(targets: SandboxResolver) -> None:
    lost(targets, "10")
    assert targets.find(replace(wanted(), accepts_loss=True)).address == OWN
    assert refused(targets, wanted())[0] == 410, "other clients are told"


def test_starting_router_reports_recent_losses_only(server: ApiServer) -> None:
    clock = ManualClock()
    recent, old = clock.now() - timedelta(minutes=1), clock.now() - timedelta(hours=1)
    for when, statuses in ((recent, 410), (old, 0)):
        targets = SandboxResolver(server.client(), clock, Random(0))
        lost(targets, "10", timestamp(when))
        targets.pods.observe(ready_pod(sandbox("box"), OWN))
        if statuses:
            assert refused(targets, wanted())[0] == statuses
        assert targets.find(wanted()).address == OWN


async def test_refresh_reads_what_the_watch_has_not_sent(server: ApiServer) -> None:
    client, clock = server.client(), ManualClock()
    targets = SandboxResolver(client, clock, Random(0))
    box = await client.create(SANDBOX, new(SANDBOX, "box", spec={"podTemplate": pod_template()}), "default")
    made = pod("box")
    made["metadata"]["ownerReferences"] = [owner_reference(box, controller=True)]
    await client.create(POD, made, "default")
    status = pod_status("Running", ready=True, ips=[OWN])
    await client.patch(POD, "box", MergePatch({"status": status}), "default", subresource="status")
    assert refused(targets, wanted())[0] == 404
    assert await targets.refresh(wanted())
    assert targets.find(wanted()).address == OWN
    assert not await targets.refresh(wanted("none"))


class Absent:
    """An API without sandboxes, which counts how often it is asked."""

    requests = 0

    async def get(self, *arguments: Any) -> Object:
        self.requests += 1
        raise NotFound("no")


async def test_refreshes_in_vain_are_limited_per_namespace_and_in_all() -> None:
    clock, client = ManualClock(), Absent()
    targets = SandboxResolver(client, clock, Random(0))  # type: ignore[arg-type]

    async def flood(*namespaces: str) -> int:
        before = client.requests
        for namespace in namespaces:
            for number in range(150):
                assert not await targets.refresh(replace(wanted(f"none-{number}"), namespace=namespace))
        return client.requests - before

    assert await flood("default") == 50
    assert await flood("default") == 0
    assert await flood("other", "third", "fourth") == 50, "the limit of all"
    await clock.advance(1.0)
    assert await flood("default") == 20
    await clock.advance(1.0)
    assert await flood("default", "other", "fifth") == 20 + 40 + 40
    await clock.advance(60.0)
    assert await flood("sixth") == 50
    assert len(targets._misses_of) == 1, "namespaces are forgotten"


async def test_refreshes_that_find_something_newer_are_not_limited(server: ApiServer) -> None:
    client = server.client()
    targets = SandboxResolver(client, ManualClock(), Random(0))
    for number in range(3):
        box = await client.create(SANDBOX, new(SANDBOX, f"b{number}", spec={"podTemplate": pod_template()}), "default")
        made = pod(f"b{number}")
        made["metadata"]["ownerReferences"] = [owner_reference(box, controller=True)]
        await client.create(POD, made, "default")
    full = targets._misses_in("default").delay
    for number in range(3):
        assert await targets.refresh(wanted(f"b{number}"))
    assert targets._misses_in("default").is_full
    for _ in range(200):  # it is not ready, and not newer
        await targets.refresh(wanted("b0"))
    assert targets._misses_in("default").delay > full == 0
