from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import count
from random import Random
from typing import Any

import pytest

from sandpool.api.kinds import CUSTOM_RESOURCE_DEFINITION, SANDBOX, SANDBOX_WARM_POOL
from sandpool.api.resource import Object
from sandpool.api.schema.crds import crd
from sandpool.kube.errors import Conflict, NotFound
from sandpool.kube.patches import merge_patch
from sandpool.server.controllers.crd_names import accept_names, status_of
from sandpool.server.controllers.crds import CrdController, from_crd
from sandpool.server.controllers.owner_graph import Ref
from sandpool.server.kinds.crds import FINALIZER
from sandpool.server.kinds.strategies import strategy_for
from sandpool.server.resources import Resource

STRATEGY = strategy_for(CUSTOM_RESOURCE_DEFINITION)
DEFINITIONS = CUSTOM_RESOURCE_DEFINITION.group_resource
NOW = "2026-01-01T00:00:00Z"


def version(name: str, *, storage: bool = False, **more: Any) -> Object:
    return {"name": name, "served": True, "storage": storage, "schema": {"openAPIV3Schema": {"type": "object"}}, **more}


def definition(
    plural: str = "things", kind: str = "Thing", *, versions: list[Object] | None = None, **names: Any
) -> Object:
    obj = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind, **names},
            "versions": versions or [version("v1", storage=True)],
        },
    }
    return STRATEGY.prepare_create(STRATEGY.default(obj))


# What is served -----------------------------------------------------------------------------------------------------


def test_sandbox_kinds_are_served_as_defined() -> None:
    (sandbox,) = from_crd(STRATEGY.default(crd(SANDBOX)))
    assert sandbox.type == SANDBOX
    assert sandbox.custom
    assert [column.name for column in sandbox.columns] == ["Ready", "Reason", "Age"]
    assert "spec" in sandbox.shape.properties
    assert sandbox.from_stored is None and sandbox.to_stored is None
    (pool,) = from_crd(STRATEGY.default(crd(SANDBOX_WARM_POOL)))
    assert pool.type == SANDBOX_WARM_POOL
    assert pool.scale is not None
    assert (pool.scale.spec, pool.scale.status) == (".spec.replicas", ".status.replicas")


def test_versions_of_a_kind_are_converted_by_name_only() -> None:
    old, new = from_crd(definition(versions=[version("v1"), version("v2", storage=True)]))
    assert old.to_stored is not None and old.from_stored is not None
    assert old.to_stored({"apiVersion": "example.com/v1", "spec": 1}) == {"apiVersion": "example.com/v2", "spec": 1}
    assert old.from_stored({"apiVersion": "example.com/v2"}) == {"apiVersion": "example.com/v1"}
    assert new.to_stored is None and new.from_stored is None


def test_objects_of_an_earlier_storage_version_are_converted() -> None:
    moved = definition(versions=[version("v1"), version("v2", storage=True)])
    moved["status"]["storedVersions"] = ["v1", "v2"]
    new = from_crd(moved)[1]
    assert new.from_stored is not None and new.to_stored is None
    assert new.from_stored({"apiVersion": "example.com/v1"}) == {"apiVersion": "example.com/v2"}
    right = {"apiVersion": "example.com/v2"}
    assert new.from_stored(right) is right


def test_unserved_versions_are_not_served() -> None:
    assert [
        r.type.version
        for r in from_crd(definition(versions=[version("v1", storage=True), {**version("v2"), "served": False}]))
    ] == ["v1"]


def test_deprecated_versions_have_a_warning() -> None:
    (plain, worded) = from_crd(
        definition(
            versions=[
                version("v1", storage=True, deprecated=True),
                version("v2", deprecated=True, deprecationWarning="use something else"),
            ]
        )
    )
    assert plain.deprecation_warning == "example.com/v1 Thing is deprecated"
    assert worded.deprecation_warning == "use something else"


# Names --------------------------------------------------------------------------------------------------------------


def accepted(obj: Object) -> Object:
    return {**obj, "status": status_of(obj, [], NOW)}


def test_names_are_accepted_and_the_kind_established() -> None:
    status = status_of(definition(shortNames=["t"], categories=["all"]), [], NOW)
    assert status["acceptedNames"] == {
        "plural": "things",
        "singular": "thing",
        "kind": "Thing",
        "listKind": "ThingList",
        "shortNames": ["t"],
        "categories": ["all"],
    }
    assert status["conditions"] == [
        {
            "type": "NamesAccepted",
            "status": "True",
            "lastTransitionTime": NOW,
            "reason": "NoConflicts",
            "message": "no conflicts found",
        },
        {
            "type": "Established",
            "status": "True",
            "lastTransitionTime": NOW,
            "reason": "InitialNamesAccepted",
            "message": "the initial names have been accepted",
        },
    ]
    assert status["storedVersions"] == ["v1"]
    done = {**definition(shortNames=["t"], categories=["all"]), "status": status}
    assert status_of(done, [], "later") is status


@pytest.mark.parametrize(
    ("names", "reason", "message"),
    [
        ({"singular": "thing"}, "SingularConflict", '"thing" is already in use'),
        ({"shortNames": ["x", "things"]}, "ShortNamesConflict", '"things" is already in use'),
        ({"kind": "Thing", "listKind": "Others"}, "KindConflict", '"Thing" is already in use'),
        ({"listKind": "ThingList"}, "ListKindConflict", '"ThingList" is already in use'),
    ],
)
def test_taken_names_are_not_accepted(names: dict[str, Any], reason: str, message: str) -> None:
    late = definition("others", **{"kind": "Other", **names})
    others = [accepted(definition())]
    assert accept_names(late, others)[1] == (reason, message)
    conditions = {c["type"]: (c["status"], c["reason"]) for c in status_of(late, others, NOW)["conditions"]}
    assert conditions == {"NamesAccepted": ("False", reason), "Established": ("False", "NotAccepted")}


def test_established_kind_stays_established() -> None:
    settled = accepted(definition("others", "Other"))
    settled["spec"] = {**settled["spec"], "names": {**settled["spec"]["names"], "shortNames": ["things"]}}
    status = status_of(settled, [accepted(definition())], "later")
    assert {c["type"]: c["status"] for c in status["conditions"]} == {"NamesAccepted": "False", "Established": "True"}
    assert "shortNames" not in status["acceptedNames"]


# The controller -----------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds
        await asyncio.sleep(0)


class Memory:
    """A store in memory: just enough of the server for the controller."""

    def __init__(self) -> None:
        self.objects: dict[Ref, Object] = {}
        self.versions = count(1)
        self.writes: list[str] = []
        self.restart()

    def restart(self) -> None:
        self.served: dict[str, list[Resource]] = {}
        self.controller = CrdController(self, Clock(), Random(0), self.publish)
        self.controller.start()

    def publish(self, name: str, resources: list[Resource]) -> None:
        self.served[name] = resources
        if not resources:
            del self.served[name]

    def get(self, ref: Ref) -> Object | None:
        return self.objects.get(ref)

    def instances(self, resource: str) -> Iterable[tuple[Ref, Object]]:
        return [(ref, obj) for ref, obj in self.objects.items() if ref.resource == resource]

    async def patch(self, ref: Ref, patch: Object, subresource: str = "") -> None:
        self.writes.append(f"patch {ref.name} {subresource}".strip())
        await asyncio.sleep(0)
        if ref not in self.objects:
            raise NotFound("gone")
        if self.objects[ref]["metadata"]["resourceVersion"] != patch["metadata"]["resourceVersion"]:
            raise Conflict("changed")
        self.put(ref, merge_patch(self.objects[ref], patch))

    async def delete(self, ref: Ref, *, uid: str) -> None:
        self.writes.append(f"delete {ref.name}")
        await asyncio.sleep(0)
        if ref not in self.objects:
            raise NotFound("gone")
        self.put(ref, merge_patch(self.objects[ref], {"metadata": {"deletionTimestamp": NOW}}))

    def put(self, ref: Ref, obj: Object) -> None:
        metadata = {"uid": ref.name, **obj["metadata"], "resourceVersion": str(next(self.versions))}
        obj = {**obj, "metadata": metadata}
        type = "MODIFIED" if ref in self.objects else "ADDED"
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
            del self.objects[ref]
            type = "DELETED"
        else:
            self.objects[ref] = obj
        if ref.resource in self.controller.resources:  # as the server calls it
            self.controller.notice(type, ref, obj)

    def define(self, obj: Object) -> Ref:
        ref = Ref(DEFINITIONS, "", obj["metadata"]["name"])
        self.put(ref, obj)
        return ref

    def thing(self, name: str, *finalizers: str) -> Ref:
        ref = Ref("things.example.com", "n", name)
        self.put(ref, {"metadata": {"name": name, "finalizers": list(finalizers)}})
        return ref

    def doom(self, ref: Ref) -> None:
        obj = merge_patch(self.objects[ref], {"metadata": {"deletionTimestamp": NOW}})
        self.put(ref, STRATEGY.prepare_delete(obj))

    def conditions(self, ref: Ref) -> dict[str, tuple[str, str]]:
        return {c["type"]: (c["status"], c["reason"]) for c in self.objects[ref]["status"]["conditions"]}

    async def settle(self) -> None:
        runner = self.controller.controller
        async with self.running():
            await runner.queue.settled()
            # Delays take no time here.
            while len(runner.delayed):
                await asyncio.sleep(0)
                await runner.queue.settled()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.get_running_loop().create_task(self.controller.controller.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_definition_is_served_at_once_and_established() -> None:
    memory = Memory()
    ref = memory.define(definition())
    assert [resource.type.plural for resource in memory.served["things.example.com"]] == ["things"]
    await memory.settle()
    assert memory.conditions(ref)["Established"] == ("True", "InitialNamesAccepted")
    assert memory.writes == ["patch things.example.com status"]


async def test_status_write_does_not_publish_again() -> None:
    memory = Memory()
    ref = memory.define(definition())
    before = memory.served["things.example.com"]
    await memory.settle()
    assert memory.served["things.example.com"] is before
    memory.put(ref, merge_patch(memory.objects[ref], {"spec": {"names": {"shortNames": ["t"]}}}))
    assert memory.served["things.example.com"][0].type.short_names == ("t",)


async def test_contended_name_goes_to_the_first_definition_and_later_to_the_second() -> None:
    memory = Memory()
    first, second = memory.define(definition()), memory.define(definition("others", "Thing"))
    assert list(memory.served) == ["things.example.com"]
    await memory.settle()
    assert memory.conditions(second)["NamesAccepted"] == ("False", "ListKindConflict")
    memory.doom(first)
    await memory.settle()
    assert list(memory.served) == ["others.example.com"]
    assert memory.conditions(second)["Established"] == ("True", "InitialNamesAccepted")


async def test_definition_is_deleted_after_its_objects() -> None:
    memory = Memory()
    ref = memory.define(definition())
    await memory.settle()
    for name in "abc":
        memory.thing(name)
    stuck = memory.thing("stuck", "example.com/hold")
    memory.doom(ref)
    assert memory.served["things.example.com"][0].strategy.terminating  # type: ignore[attr-defined]
    await memory.settle()
    assert {each.name for each in memory.objects} == {"things.example.com", "stuck"}
    assert memory.conditions(ref)["Terminating"] == ("True", "InstanceDeletionInProgress")
    memory.put(stuck, merge_patch(memory.objects[stuck], {"metadata": {"finalizers": None}}))
    await memory.settle()
    assert memory.objects == {}
    assert memory.served == {}


async def test_foreign_finalizers_are_respected() -> None:
    memory = Memory()
    ref = memory.define(definition())
    memory.put(ref, merge_patch(memory.objects[ref], {"metadata": {"finalizers": ["example.com/x"]}}))
    memory.doom(ref)
    await memory.settle()
    assert memory.objects[ref]["metadata"]["finalizers"] == ["example.com/x"]
    assert memory.conditions(ref)["Terminating"] == ("False", "InstanceDeletionCompleted")


@pytest.mark.parametrize("steps", range(0, 30, 2))
async def test_crash_at_any_write_is_repaired_at_the_next_start(steps: int) -> None:
    memory = Memory()
    doomed = memory.define(definition())
    for index in range(5):
        memory.thing(f"t{index}")
    memory.define(definition("others", "Other"))
    memory.doom(doomed)
    async with memory.running():
        for _ in range(steps):
            await asyncio.sleep(0)
    memory.restart()
    await memory.settle()
    assert {ref.name for ref in memory.objects} == {"others.example.com"}
    assert list(memory.served) == ["others.example.com"]


# Marking a definition -------------------------------------------------------------------------------------------------


def test_first_delete_only_marks_the_definition() -> None:
    fresh = definition()
    assert STRATEGY.blocks_removal(fresh)
    marked = STRATEGY.prepare_delete({**fresh, "metadata": {"name": "x", "deletionTimestamp": NOW}})
    assert marked["metadata"]["finalizers"] == [FINALIZER]
    assert marked["status"]["conditions"][-1]["reason"] == "InstanceDeletionPending"
    assert not STRATEGY.blocks_removal(marked)


def test_storage_versions_stay_recorded() -> None:
    old = definition()
    new = {**old, "spec": {**old["spec"], "versions": [version("v1"), version("v2", storage=True)]}}
    assert STRATEGY.prepare_update(new, old)["status"]["storedVersions"] == ["v1", "v2"]


def test_conversion_webhook_is_rejected() -> None:
    hooked = definition()
    hooked["spec"] = {**hooked["spec"], "conversion": {"strategy": "Webhook", "webhook": {}}}
    (cause,) = STRATEGY.validate(hooked, None)
    assert cause.field == "spec.conversion.strategy"
    assert "conversion webhooks are not supported" in cause.message
