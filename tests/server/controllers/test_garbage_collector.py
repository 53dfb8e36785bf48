from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import count
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandpool.api.resource import Object
from sandpool.kube.errors import Conflict, NotFound
from sandpool.kube.patches import merge_patch
from sandpool.server.controllers.garbage_collector import (
    Action,
    Delete,
    GarbageCollector,
    Keep,
    OwnedObject,
    Propagation,
    Unlink,
    decide,
)
from sandpool.server.controllers.owner_graph import OwnerKind, OwnerState, Ref
from sandpool.server.kinds.metadata import FOREGROUND, ORPHAN

SOLID, WAITING, ABSENT, UNKNOWN = OwnerState.SOLID, OwnerState.WAITING, OwnerState.ABSENT, OwnerState.UNKNOWN


@pytest.mark.parametrize(
    ("owners", "facts", "expected"),
    [
        ([], {}, Keep()),
        ([SOLID], {}, Keep()),
        ([SOLID, SOLID], {}, Keep()),
        ([ABSENT], {}, Delete("Background")),
        ([ABSENT, ABSENT], {}, Delete("Background")),
        ([SOLID, ABSENT], {}, Unlink(frozenset({"1"}))),
        ([SOLID, WAITING, ABSENT], {}, Unlink(frozenset({"1", "2"}))),
        ([WAITING], {}, Delete("Background")),
        ([WAITING], {"has_dependents": True}, Delete("Foreground")),
        ([WAITING, ABSENT], {"has_dependents": True}, Delete("Foreground")),
        ([ABSENT], {"has_dependents": True}, Delete("Background")),
        ([ABSENT], {"finalizers": [ORPHAN]}, Delete("Orphan")),
        ([ABSENT], {"finalizers": [FOREGROUND]}, Delete("Foreground")),
        ([UNKNOWN], {}, Keep()),
        ([ABSENT, UNKNOWN], {}, Keep()),
        ([SOLID, ABSENT, UNKNOWN], {}, Keep()),
    ],
)
def test_decide_returns_the_action_for_the_owner_states(
    owners: list[OwnerState], facts: dict[str, Any], expected: Action
) -> None:
    assert decide({str(index): state for index, state in enumerate(owners)}, **facts) == expected


@given(st.dictionaries(st.text(max_size=2), st.sampled_from(OwnerState)), st.booleans())
def test_object_with_a_live_or_unknown_owner_is_not_deleted(
    owners: dict[str, OwnerState], has_dependents: bool
) -> None:
    action = decide(owners, has_dependents=has_dependents)
    if not owners or {SOLID, UNKNOWN} & {*owners.values()}:
        assert not isinstance(action, Delete)
    else:
        assert isinstance(action, Delete)


# A store in memory: just enough of the server to delete, patch and tell what changed --------------------------------


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
    """Kind Thing lives in namespaces, kind Place does not, and kind Other is served only when told."""

    def __init__(self) -> None:
        self.objects: dict[Ref, Object] = {}
        self.kept: set[Ref] = set()  # decoded, because they were written since the start
        self.kinds = {"Thing": OwnerKind("things", True), "Place": OwnerKind("places", False)}
        self.versions = count(1)
        self.collector = GarbageCollector(self, Clock(), Random(0))
        self.writes = 0
        self.refuse: Callable[[int], bool] = lambda write: False

    # what the collector uses

    def owned_objects(self) -> Iterable[OwnedObject]:
        for ref, obj in self.objects.items():
            metadata = obj["metadata"]
            owners = tuple(reference["uid"] for reference in metadata.get("ownerReferences", []))
            yield OwnedObject(ref, metadata["uid"], owners, held=bool(metadata.get("finalizers")))

    def get(self, ref: Ref) -> Object | None:
        return self.objects.get(ref)

    def kind(self, api_version: str, kind: str) -> OwnerKind | None:
        return self.kinds.get(kind)

    async def delete(self, ref: Ref, *, uid: str, resource_version: str, propagation: Propagation) -> None:
        await self._write()
        self._check(ref, uid, resource_version)
        self.doom(ref, propagation)

    async def patch(self, ref: Ref, merge_patch_: Object) -> None:
        await self._write()
        self._check(ref, merge_patch_["metadata"]["uid"], merge_patch_["metadata"]["resourceVersion"])
        self.put(ref, merge_patch(self.objects[ref], merge_patch_))

    async def _write(self) -> None:
        self.writes += 1
        await asyncio.sleep(0)
        if self.refuse(self.writes):
            raise Conflict("try again")

    def _check(self, ref: Ref, uid: str, resource_version: str) -> None:
        if ref not in self.objects:
            raise NotFound("gone")
        metadata = self.objects[ref]["metadata"]
        if (metadata["uid"], metadata["resourceVersion"]) != (uid, resource_version):
            raise Conflict("changed")

    # what a test does

    def put(self, ref: Ref, obj: Object) -> None:
        before = self.objects.get(ref) if ref in self.kept else None
        self.kept.add(ref)
        type = "MODIFIED" if ref in self.objects else "ADDED"
        obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(next(self.versions))}}
        if obj["metadata"].get("deletionTimestamp") and not obj["metadata"].get("finalizers"):
            del self.objects[ref]
            type = "DELETED"
        else:
            self.objects[ref] = obj
        self.collector.notice(type, ref, obj, before)

    def create(
        self, name: str, *owners: Object, namespace: str = "n", kind: str = "Thing", finalizers: Iterable[str] = ()
    ) -> Ref:
        found = self.kinds.get(kind, OwnerKind("others", True))
        ref = Ref(found.resource, namespace if found.namespaced else "", name)
        metadata: Object = {"name": name, "uid": f"uid-{name}-{next(self.versions)}"}
        if owners:
            metadata["ownerReferences"] = list(owners)
        if finalizers:
            metadata["finalizers"] = list(finalizers)
        self.put(ref, {"kind": kind, "apiVersion": "v1", "metadata": metadata})
        return ref

    def owner(self, ref: Ref, *, blocks: bool = False, kind: str = "") -> Object:
        obj = self.objects[ref]
        metadata = obj["metadata"]
        reference = {"apiVersion": "v1", "kind": kind or obj["kind"], "name": ref.name, "uid": metadata["uid"]}
        return {**reference, "blockOwnerDeletion": True} if blocks else reference

    def doom(self, ref: Ref, propagation: Propagation = "Background") -> None:
        obj = self.objects[ref]
        metadata = obj["metadata"]
        finalizers = [name for name in metadata.get("finalizers", []) if name not in (ORPHAN, FOREGROUND)]
        finalizers += {"Orphan": [ORPHAN], "Foreground": [FOREGROUND], "Background": []}[propagation]
        self.put(ref, {**obj, "metadata": {**metadata, "finalizers": finalizers, "deletionTimestamp": "now"}})

    def names(self) -> set[str]:
        return {ref.name for ref in self.objects}

    async def settle(self) -> None:
        """Let the collector do all it wants to."""
        controller = self.collector.controller
        async with self.running():
            await controller.queue.settled()
            # Delays take no time here.
            while len(controller.delayed):
                await asyncio.sleep(0)
                await controller.queue.settled()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.get_running_loop().create_task(self.collector.controller.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def restart(self) -> None:
        """The process died and another one starts on what is stored."""
        self.collector = GarbageCollector(self, Clock(), Random(0))
        self.kept.clear()
        self.collector.start()


GHOST: Object = {"apiVersion": "v1", "kind": "Thing", "name": "ghost", "uid": "uid-ghost"}


async def test_background_deletion_cascades_after_the_owner() -> None:
    memory = Memory()
    owner = memory.create("owner")
    child = memory.create("child", memory.owner(owner))
    memory.create("grandchild", memory.owner(child))
    memory.create("stranger")
    await memory.settle()
    assert memory.names() == {"owner", "child", "grandchild", "stranger"}
    memory.doom(owner)
    await memory.settle()
    assert memory.names() == {"stranger"}


async def test_object_with_live_owners_is_never_read() -> None:
    memory = Memory()
    owner = memory.create("owner")
    memory.create("child", memory.owner(owner))
    assert len(memory.collector.controller.queue) == 0


async def test_write_that_copies_the_owners_leaves_the_graph_alone() -> None:
    memory = Memory()
    owner = memory.create("owner")
    child = memory.create("child", memory.owner(owner))
    del memory.kinds["Thing"]  # a check of the owners would not find them
    memory.put(child, {**memory.objects[child], "spec": {}})
    assert len(memory.collector.controller.queue) == 0
    memory.put(child, merge_patch(memory.objects[child], {"metadata": {"ownerReferences": [GHOST]}}))
    assert len(memory.collector.controller.queue) == 1


async def test_foreground_deletion_waits_for_blocking_dependents() -> None:
    memory = Memory()
    owner = memory.create("owner")
    memory.create("blocking", memory.owner(owner, blocks=True), finalizers=["example.com/slow"])
    memory.create("other", memory.owner(owner), finalizers=["example.com/slow"])
    memory.doom(owner, "Foreground")
    await memory.settle()
    assert memory.names() == {"owner", "blocking", "other"}
    assert all("deletionTimestamp" in obj["metadata"] for obj in memory.objects.values())
    slow = Ref("things", "n", "blocking")
    memory.put(slow, merge_patch(memory.objects[slow], {"metadata": {"finalizers": None}}))
    await memory.settle()
    assert memory.names() == {"other"}


async def test_foreground_deletion_spreads_to_dependents_with_dependents() -> None:
    memory = Memory()
    owner = memory.create("owner")
    child = memory.create("child", memory.owner(owner, blocks=True))
    grandchild = memory.create("grandchild", memory.owner(child, blocks=True), finalizers=["example.com/slow"])
    memory.doom(owner, "Foreground")
    await memory.settle()
    assert memory.names() == {"owner", "child", "grandchild"}
    assert memory.objects[child]["metadata"]["finalizers"] == [FOREGROUND]
    memory.put(grandchild, merge_patch(memory.objects[grandchild], {"metadata": {"finalizers": None}}))
    await memory.settle()
    assert memory.names() == set()


async def test_circular_ownership_does_not_deadlock() -> None:
    memory = Memory()
    a = memory.create("a")
    b = memory.create("b", memory.owner(a, blocks=True))
    memory.put(a, merge_patch(memory.objects[a], {"metadata": {"ownerReferences": [memory.owner(b, blocks=True)]}}))
    memory.doom(a, "Foreground")
    await memory.settle()
    assert memory.names() == set()


async def test_orphans_lose_the_reference_and_stay() -> None:
    memory = Memory()
    owner, other = memory.create("owner"), memory.create("other")
    child = memory.create("child", memory.owner(owner), memory.owner(other))
    memory.doom(owner, "Orphan")
    await memory.settle()
    assert memory.names() == {"other", "child"}
    assert memory.objects[child]["metadata"]["ownerReferences"] == [memory.owner(other)]


async def test_dependent_is_deleted_with_its_last_owner() -> None:
    memory = Memory()
    first, second = memory.create("first"), memory.create("second")
    child = memory.create("child", memory.owner(first), memory.owner(second))
    memory.doom(first)
    await memory.settle()
    assert memory.objects[child]["metadata"]["ownerReferences"] == [memory.owner(second)]
    memory.doom(second)
    await memory.settle()
    assert memory.names() == set()


async def test_nonexistent_owner_counts_as_deleted() -> None:
    memory = Memory()
    memory.create("child", GHOST)
    await memory.settle()
    assert memory.names() == set()


async def test_owner_is_matched_by_uid_and_not_by_name() -> None:
    memory = Memory()
    memory.create("ghost")
    memory.create("child", GHOST)
    await memory.settle()
    assert memory.names() == {"ghost"}


async def test_owner_in_another_namespace_does_not_count() -> None:
    memory = Memory()
    far = memory.create("far", namespace="elsewhere")
    memory.create("child", memory.owner(far))
    await memory.settle()
    assert memory.names() == {"far"}
    memory.create("child", memory.owner(far, blocks=True), finalizers=["example.com/slow"])
    memory.doom(far, "Foreground")
    await memory.settle()
    assert memory.names() == {"child"}


async def test_cluster_scoped_owners_own_across_namespaces() -> None:
    memory = Memory()
    place = memory.create("place", kind="Place")
    memory.create("child", memory.owner(place))
    memory.create("cousin", memory.owner(place), namespace="elsewhere")
    await memory.settle()
    assert memory.names() == {"place", "child", "cousin"}
    memory.doom(place)
    await memory.settle()
    assert memory.names() == set()


async def test_owner_of_an_unserved_kind_counts_as_alive() -> None:
    memory = Memory()
    memory.create("child", {**GHOST, "kind": "Other"})
    await memory.settle()
    assert memory.names() == {"child"}
    memory.kinds["Other"] = OwnerKind("others", True)
    memory.collector.kinds_changed()
    await memory.settle()
    assert memory.names() == set()


async def test_observed_deletion_of_an_owner_counts_even_if_its_kind_is_gone() -> None:
    memory = Memory()
    memory.kinds["Other"] = OwnerKind("others", True)
    owner = memory.create("owner", kind="Other")
    memory.create("child", memory.owner(owner))
    memory.doom(owner)
    del memory.kinds["Other"]
    await memory.settle()
    assert memory.names() == set()


async def test_owner_reference_added_later_is_processed() -> None:
    memory = Memory()
    child = memory.create("child")
    memory.put(child, merge_patch(memory.objects[child], {"metadata": {"ownerReferences": [GHOST]}}))
    await memory.settle()
    assert memory.names() == set()


async def test_dependent_that_stops_blocking_releases_its_owner() -> None:
    memory = Memory()
    owner, other = memory.create("owner"), memory.create("other")
    child = memory.create("child", memory.owner(owner, blocks=True), memory.owner(other), finalizers=["example.com/x"])
    memory.doom(owner, "Foreground")
    await memory.settle()
    assert memory.names() == {"other", "child"}
    assert memory.objects[child]["metadata"]["ownerReferences"] == [memory.owner(other)]


async def test_rejected_writes_are_retried() -> None:
    memory = Memory()
    owner = memory.create("owner")
    memory.create("child", memory.owner(owner))
    memory.refuse = lambda write: write < 4
    memory.doom(owner)
    await memory.settle()
    assert memory.names() == set()
    assert memory.writes == 4


async def test_thousand_dependents_cost_one_write_each() -> None:
    memory = Memory()
    owner = memory.create("owner")
    for index in range(1000):
        memory.create(f"child-{index}", memory.owner(owner, blocks=True))
    memory.doom(owner, "Foreground")
    await memory.settle()
    assert memory.names() == set()
    assert memory.writes == 1001


# Any graph, any deletions, a crash anywhere ---------------------------------------------------------------------------

NAMES = [f"o{index}" for index in range(7)]
links = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES), st.booleans()), max_size=12)
deletions = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(["Background", "Foreground", "Orphan"])), max_size=4
)


@settings(max_examples=150, deadline=None)
@given(links=links, ghosts=st.sets(st.sampled_from(NAMES)), deletions=deletions, crash=st.integers(0, 12))
def test_remaining_objects_are_consistent_after_any_history(
    links: list[tuple[str, str, bool]],
    ghosts: set[str],
    deletions: list[tuple[str, Propagation]],
    crash: int,
) -> None:
    asyncio.run(check_graph(links, ghosts, deletions, crash))


async def check_graph(
    links: list[tuple[str, str, bool]], ghosts: set[str], deletions: list[tuple[str, Propagation]], crash: int
) -> None:
    memory = Memory()
    refs = {name: memory.create(name) for name in NAMES}
    for child, owner, blocks in links:
        reference = memory.owner(refs[owner], blocks=blocks)
        obj = memory.objects[refs[child]]
        present = [it for it in obj["metadata"].get("ownerReferences", []) if it["uid"] != reference["uid"]]
        memory.put(refs[child], merge_patch(obj, {"metadata": {"ownerReferences": [*present, reference]}}))
    for name in ghosts:
        obj = memory.objects[refs[name]]
        present = obj["metadata"].get("ownerReferences", [])
        memory.put(refs[name], merge_patch(obj, {"metadata": {"ownerReferences": [*present, GHOST]}}))
    for name, propagation in deletions:
        if refs[name] in memory.objects:
            memory.doom(refs[name], propagation)
    # Die after some steps, wherever that is, and start again.
    async with memory.running():
        for _ in range(crash):
            await asyncio.sleep(0)
    memory.restart()
    await memory.settle()
    alive = {obj["metadata"]["uid"] for obj in memory.objects.values()}
    for obj in memory.objects.values():
        owners = {reference["uid"] for reference in obj["metadata"].get("ownerReferences", [])}
        assert owners <= alive, "a reference to something that is gone"
        assert "deletionTimestamp" not in obj["metadata"], "a deletion that does not end"
    # An object stays if no client deleted it and no nonexistent owner owned it, unless all its owners went.
    doomed = {name for name, _ in deletions} | ghosts
    reachable = {child for child, _, _ in links}
    assert memory.names() >= {name for name in NAMES if name not in doomed and name not in reachable}
