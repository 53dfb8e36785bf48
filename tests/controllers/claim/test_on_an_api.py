"""Decisions performed on an API: accepted, within the budget, and safe against a crash before any write."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sandpool.api import labels
from sandpool.api.kinds import SANDBOX, SANDBOX_CLAIM, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.api.resource import Key, Object, ResourceType, SharedObject
from sandpool.api.views import ClaimView, SandboxView, TemplateView, WarmPoolView
from sandpool.controllers.claim.adoption import is_adopted
from sandpool.controllers.claim.assignment.assigner import Assigner
from sandpool.controllers.claim.assignment.candidates import candidate_of
from sandpool.controllers.claim.plan import (
    Adopt,
    CreateCold,
    DeleteClaim,
    DeleteSandboxes,
    Expire,
    Observed,
    Reject,
    RequestWarm,
    Sync,
    decide,
    plan_adoption,
    plan_creation,
)
from sandpool.controllers.claim.reporter import finish
from sandpool.controllers.claim.status import compute_status
from sandpool.controllers.revision import TemplateRevision
from sandpool.controllers.warmpool.members import new_member
from sandpool.controllers.writer import Create, Delete, Patch
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import Conflict, NotFound
from sandpool.server.api_server import ApiServer
from sandpool.testing.objects import new, pod_template
from tests.support.claim_objects import ready_status

NAMESPACE = "default"


class Crash(Exception):
    """The process ended here."""


class Controller:
    """The plainest possible: reads everything, reconciles once, counts its writes and ends after ``survives``."""

    def __init__(self, client: Client, *, survives: int = 1000) -> None:
        self.client = client
        self.survives = survives
        self.writes: list[str] = []
        self.enqueued: list[tuple[str, str]] = []
        self.assigner = Assigner(self.enqueued.append)

    async def look(self, type: ResourceType, name: str) -> SharedObject | None:
        try:
            return await self.client.get(type, name, NAMESPACE)
        except NotFound:
            return None

    async def observe(self, name: str) -> Observed:
        claim = ClaimView.from_object(await self.client.get(SANDBOX_CLAIM, name, NAMESPACE))
        boxes = [SandboxView.from_object(each) for each in (await self.client.list(SANDBOX, NAMESPACE))["items"]]
        pool = await self.look(SANDBOX_WARM_POOL, claim.warm_pool)
        template = await self.look(SANDBOX_TEMPLATE, "python")
        view = None if template is None else TemplateView.from_object(template)
        revision = None if view is None else TemplateRevision.of(view)
        pool_view = None if pool is None else WarmPoolView.from_object(pool)
        for box in boxes:
            candidate = candidate_of(box, pool_view, revision)
            if candidate is None:
                self.assigner.forget(Key(NAMESPACE, box.name))
            else:
                self.assigner.update(candidate)
        owned = [box for box in boxes if box.controlled_by(claim)]
        assert claim.creation_timestamp is not None
        named = {box.name: box for box in boxes}
        return Observed(claim, owned, named, pool_view, view, revision, now=claim.creation_timestamp)

    async def run(self, name: str = "claim") -> SharedObject | None:
        """Reconcile once and return the claim."""
        scene = await self.observe(name)
        decision = decide(scene)
        box: SandboxView | None = None
        expired = isinstance(decision, Expire | DeleteSandboxes)
        error = None
        if isinstance(decision, RequestWarm):
            leases = (self.assigner.take(request, starting=True) for request in decision.requests)
            lease = next((lease for lease in leases if lease is not None), None)
            if lease is None:
                decision = plan_creation(scene)
            else:
                with lease:
                    decision = plan_adoption(scene, scene.named[lease.sandbox[1]])
                    assert isinstance(decision, Adopt)
                    box = await self.adopt(decision)
                    lease.done()
        elif isinstance(decision, Adopt):
            box = await self.adopt(decision)
        if isinstance(decision, DeleteClaim):
            await self.write(decision.delete, foreground=decision.foreground)
            return await self.look(SANDBOX_CLAIM, name)
        if isinstance(decision, CreateCold):
            box = await self.patched(decision.create)
        elif isinstance(decision, Sync):
            box, error = decision.sandbox, decision.error
            if decision.patch is not None:
                box = await self.patched(decision.patch)
        elif isinstance(decision, DeleteSandboxes):
            box = decision.sandbox
            for delete in decision.deletes:
                await self.write(delete)
        elif isinstance(decision, Reject):
            error = decision.error
        update = compute_status(scene.claim, scene.now, box, error, expired=expired)
        if update.patch is not None:
            await self.write(update.patch)
        metadata = finish(scene, update.status, box, scene.now)
        if metadata is not None:
            await self.write(Patch(SANDBOX_CLAIM, name, metadata))
        return await self.look(SANDBOX_CLAIM, name)

    async def adopt(self, decision: Adopt) -> SandboxView:
        return await self.patched(decision.patch)

    async def patched(self, write: Patch | Create) -> SandboxView:
        answer = await self.write(write)
        assert answer is not None
        return SandboxView.from_object(answer)

    async def write(self, write: Patch | Create | Delete, *, foreground: bool = False) -> SharedObject | None:
        if len(self.writes) == self.survives:
            raise Crash
        if isinstance(write, Create):
            self.writes.append(f"create {write.type.plural}")
            return await self.client.create(write.type, write.object, NAMESPACE)
        if isinstance(write, Patch):
            self.writes.append(f"patch {write.type.plural}{'/' + write.subresource if write.subresource else ''}")
            return await self.client.patch(
                write.type, write.name, MergePatch(write.body), NAMESPACE, subresource=write.subresource
            )
        self.writes.append(f"delete {write.type.plural}{' in the foreground' if foreground else ''}")
        policy = "Foreground" if foreground else "Background"
        return await self.client.delete(write.type, write.name, NAMESPACE, uid=write.uid, propagation_policy=policy)


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    server = ApiServer(tmp_path)
    await server.start()
    client = server.client()
    pod = pod_template(labels={"app": "agent"})
    await client.create(SANDBOX_TEMPLATE, new(SANDBOX_TEMPLATE, "python", spec={"podTemplate": pod}), NAMESPACE)
    spec = {"replicas": 2, "sandboxTemplateRef": {"name": "python"}}
    await client.create(SANDBOX_WARM_POOL, new(SANDBOX_WARM_POOL, "pool", spec=spec), NAMESPACE)
    yield client
    await server.stop()


async def make_member(client: Client, name: str, status: Object | None = None) -> SharedObject:
    """Create a member as the pool and the sandbox controller do."""
    template = TemplateView.from_object(await client.get(SANDBOX_TEMPLATE, "python", NAMESPACE))
    pool = await client.get(SANDBOX_WARM_POOL, "pool", NAMESPACE)
    box = new_member(WarmPoolView.from_object(pool), TemplateRevision.of(template), name, enable_eviction=True)
    await client.create(SANDBOX, box, NAMESPACE)
    body = {"status": ready_status() if status is None else status}
    return await client.patch(SANDBOX, name, MergePatch(body), NAMESPACE, subresource="status")


async def make_claim(client: Client, name: str = "claim", **spec: Any) -> SharedObject:
    whole = new(SANDBOX_CLAIM, name, spec={"warmPoolRef": {"name": "pool"}, **spec})
    return await client.create(SANDBOX_CLAIM, whole, NAMESPACE)


def ready(claim: SharedObject | None) -> str:
    assert claim is not None
    (found,) = [each for each in claim["status"]["conditions"] if each["type"] == "Ready"]
    return f"{found['status']}/{found['reason']}"


async def owners(client: Client) -> dict[str, str]:
    items = (await client.list(SANDBOX, NAMESPACE))["items"]
    return {each["metadata"]["name"]: each["metadata"]["ownerReferences"][0]["name"] for each in items}


async def test_warm_claim_costs_two_writes_until_ready_and_one_after(client: Client) -> None:
    before = await make_member(client, "pool-abcde")
    await make_claim(client)
    controller = Controller(client)
    claim = await controller.run()
    assert controller.writes == ["patch sandboxes", "patch sandboxclaims/status", "patch sandboxclaims"]
    assert ready(claim) == "True/DependenciesReady"
    assert claim is not None
    assert claim["status"]["sandbox"] == {"name": "pool-abcde", "podIPs": ["10.0.0.1"]}
    after = await client.get(SANDBOX, "pool-abcde", NAMESPACE)
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    assert after["spec"] == before["spec"]


async def test_second_reconcile_writes_nothing(client: Client) -> None:
    await make_member(client, "pool-abcde")
    await make_claim(client)
    await Controller(client).run()
    again = Controller(client)
    await again.run()
    assert again.writes == []


@pytest.mark.parametrize("survives", [0, 1, 2, 3])
@pytest.mark.parametrize("spec", [{}, {"additionalPodMetadata": {"labels": {"sandbox.users.io/a": "b"}}}])
async def test_r1_r14_r43_crash_before_any_write_costs_no_sandbox(
    client: Client, survives: int, spec: dict[str, Any]
) -> None:
    for name in ("pool-a", "pool-b"):
        await make_member(client, name)
    await make_claim(client, **spec)
    crashed = Controller(client, survives=survives)
    with suppress(Crash):
        await crashed.run()
    claim = await Controller(client).run()
    assert ready(claim) == "True/DependenciesReady"
    assert claim is not None
    assert sorted((await owners(client)).values()) == ["claim", "pool"]
    assert (await owners(client))[claim["status"]["sandbox"]["name"]] == "claim"
    assert claim["metadata"]["annotations"][labels.SANDBOX_NAME] == claim["status"]["sandbox"]["name"]


async def test_r2_second_writer_gets_a_conflict_and_the_first_keeps_the_sandbox(client: Client) -> None:
    await make_member(client, "pool-abcde")
    await make_claim(client, "first")
    await make_claim(client, "second")
    scene = await Controller(client).observe("second")
    late = plan_adoption(scene, scene.named["pool-abcde"])
    await Controller(client).run("first")
    assert isinstance(late, Adopt)
    with pytest.raises(Conflict):
        await Controller(client).adopt(late)
    fresh = SandboxView.from_object(await client.get(SANDBOX, "pool-abcde", NAMESPACE))
    with pytest.raises(Exception, match="no longer pool-owned and not controlled by claim second"):
        is_adopted(scene.claim, "pool-abcde", fresh)
    assert await owners(client) == {"pool-abcde": "first"}


async def test_empty_pool_causes_a_cold_start(client: Client) -> None:
    await make_claim(client)
    controller = Controller(client)
    claim = await controller.run()
    assert controller.writes == ["create sandboxes", "patch sandboxclaims/status"]
    assert ready(claim) == "False/SandboxNotReady"
    assert await owners(client) == {"claim": "claim"}
    await client.patch(SANDBOX, "claim", MergePatch({"status": ready_status()}), NAMESPACE, subresource="status")
    later = Controller(client)
    assert ready(await later.run()) == "True/DependenciesReady"
    assert later.writes == ["patch sandboxclaims/status", "patch sandboxclaims"]


async def test_e34_starting_sandbox_is_adopted_when_none_is_ready(client: Client) -> None:
    await make_member(client, "pool-abcde", ready_status(status="False", reason="DependenciesNotReady"))
    await make_claim(client)
    assert ready(await Controller(client).run()) == "False/DependenciesNotReady"
    assert await owners(client) == {"pool-abcde": "claim"}


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("Delete", "delete sandboxclaims"),
        ("DeleteForeground", "delete sandboxclaims in the foreground"),
        ("Retain", "delete sandboxes"),
    ],
)
async def test_expired_claim_is_marked_and_then_handled_by_its_policy(
    client: Client, policy: str, expected: str
) -> None:
    await make_member(client, "pool-abcde")
    await make_claim(client, lifecycle={"shutdownPolicy": policy})
    await Controller(client).run()
    past = {"spec": {"lifecycle": {"shutdownTime": "2020-01-01T00:00:00Z"}}}
    await client.patch(SANDBOX_CLAIM, "claim", MergePatch(past), NAMESPACE)
    first, second = Controller(client), Controller(client)
    assert ready(await first.run()) == "False/ClaimExpired"
    assert first.writes == ["patch sandboxclaims/status"]
    await second.run()
    assert second.writes[0] == expected
