"""A delete that waited at the gate applies to the current sandbox, or is dropped."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from copy import deepcopy
from random import Random
from typing import Any

import pytest

from sandpool.api.kinds import CONFIG_MAP
from sandpool.api.labels import WARM_POOL
from sandpool.api.resource import Key, Object
from sandpool.api.warmpool import RECREATE
from sandpool.controllers.dependencies import Dependencies
from sandpool.controllers.informers import Caches
from sandpool.controllers.warmpool.controller import WarmPoolController
from sandpool.engine.background import BackgroundGate
from sandpool.engine.events import EventRecorder
from sandpool.kube.client import Client
from sandpool.kube.errors import ServiceUnavailable
from sandpool.kube.transport import Request, WatchEvent
from sandpool.testing.clock import ManualClock
from sandpool.testing.objects import new
from tests.support.api_objects import owner_reference
from tests.support.claim_objects import pool_member, ready_status, warm_pool
from tests.support.sandbox_objects import template

NEWER = "900"


class Refusing:
    """A transport to an API that takes nothing, and remembers what it was asked."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    async def request(self, request: Request) -> Any:
        self.requests.append(request)
        raise ServiceUnavailable("not now")

    def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        raise NotImplementedError

    async def close(self) -> None:
        pass


class Delay(BackgroundGate):
    """``happens`` is called while the delete waits at the gate, after the reconcile has begun."""

    def __init__(self, clock: ManualClock, happens: Callable[[], object]) -> None:
        super().__init__(clock)
        self.happens = happens
        self.came = 0

    async def wait(self) -> None:
        self.came += 1
        if self.came == 2:
            self.happens()
        await super().wait()


def changed(obj: Object, **metadata: Any) -> Object:
    """The next version of an object; ``metadata`` is laid over its own."""
    return {**obj, "metadata": {**obj["metadata"], **metadata, "resourceVersion": NEWER}}


class Scenery:
    """A pool with one member of a former template, which the next reconcile would delete."""

    def __init__(self) -> None:
        self.caches = Caches()
        self.pool = warm_pool(strategy=RECREATE, metadata={"generation": 1})
        self.pool["spec"]["replicas"] = 1
        self.template = template(metadata={"generation": 1})
        self.member = pool_member(pool=self.pool, status=ready_status())
        self.member["spec"] = deepcopy(self.template["spec"])
        self.member["spec"]["podTemplate"]["spec"]["containers"][0]["image"] = "example.com/former"
        self.caches.templates.observe(self.template)
        self.caches.pools.observe(self.pool)
        self.caches.sandboxes.observe(self.member)

    async def deletes(self, meanwhile: Callable[[], object]) -> list[Request]:
        """Return the deletes of a reconcile if ``happens`` is called while it waits at the gate."""
        clock, api = ManualClock(), Refusing()
        gate = Delay(clock, meanwhile)
        client = Client(api)
        recorder = EventRecorder(client, clock, "test")
        pools = WarmPoolController(Dependencies.of(client, self.caches, recorder, clock, Random(0), gate=gate))
        with suppress(ServiceUnavailable):
            await pools.reconcile(Key(self.pool["metadata"]["namespace"], "pool"))
        assert gate.came >= 2, "something was to happen"
        return [request for request in api.requests if request.method == "DELETE"]


@pytest.fixture
def scenery() -> Scenery:
    return Scenery()


def precondition(request: Request) -> str:
    version: str = request.body["preconditions"]["resourceVersion"]
    return version


async def test_unchanged_member_is_deleted_after_waiting_at_the_gate(scenery: Scenery) -> None:
    (delete,) = await scenery.deletes(lambda: None)
    assert precondition(delete) == scenery.member["metadata"]["resourceVersion"]


async def test_change_of_unread_fields_does_not_cancel_the_deletion(scenery: Scenery) -> None:
    newer = changed(scenery.member)
    newer["status"] = {**newer["status"], "nodeName": "node-2"}
    (delete,) = await scenery.deletes(lambda: scenery.caches.sandboxes.observe(newer))
    assert precondition(delete) == NEWER


def claimed(scenery: Scenery) -> None:
    owner = new(CONFIG_MAP, "other", metadata={"uid": "other"})
    scenery.caches.sandboxes.observe(changed(scenery.member, ownerReferences=[owner_reference(owner, controller=True)]))


def given_away(scenery: Scenery) -> None:
    labels = {key: value for key, value in scenery.member["metadata"]["labels"].items() if key != WARM_POOL}
    scenery.caches.sandboxes.observe(changed(scenery.member, labels=labels))


def on_its_way_out(scenery: Scenery) -> None:
    scenery.caches.sandboxes.observe(changed(scenery.member, deletionTimestamp="2026-11-01T12:00:00Z"))


def made_again(scenery: Scenery) -> None:
    scenery.caches.sandboxes.observe(changed(scenery.member, uid="another"))


def gone(scenery: Scenery) -> None:
    metadata = scenery.member["metadata"]
    scenery.caches.sandboxes.record_deletion(Key(metadata["namespace"], metadata["name"]), metadata["uid"])


def not_ready_any_more(scenery: Scenery) -> None:
    scenery.caches.sandboxes.observe({**changed(scenery.member), "status": ready_status(status="False")})


def of_the_current_template(scenery: Scenery) -> None:
    back = changed(scenery.template, generation=2)
    back["spec"] = scenery.member["spec"]
    scenery.caches.templates.observe(back)


def of_a_pool_that_has_changed(scenery: Scenery) -> None:
    scenery.caches.pools.observe(changed(scenery.pool, generation=2))


def of_a_pool_that_has_gone(scenery: Scenery) -> None:
    metadata = scenery.pool["metadata"]
    scenery.caches.pools.record_deletion(Key(metadata["namespace"], metadata["name"]), metadata["uid"])


@pytest.mark.parametrize(
    "happens",
    [
        claimed,
        given_away,
        on_its_way_out,
        made_again,
        gone,
        not_ready_any_more,
        of_the_current_template,
        of_a_pool_that_has_changed,
        of_a_pool_that_has_gone,
    ],
)
async def test_change_that_affects_the_plan_cancels_the_deletion(
    scenery: Scenery, happens: Callable[[Scenery], None]
) -> None:
    assert await scenery.deletes(lambda: happens(scenery)) == []
