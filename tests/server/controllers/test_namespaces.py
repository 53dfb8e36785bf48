from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import count
from random import Random

import pytest

from sandpool.api.kinds import CONFIG_MAP, POD
from sandpool.api.resource import Object
from sandpool.kube.errors import AlreadyExists, ApiError, Conflict, Forbidden, NotFound
from sandpool.kube.patches import merge_patch
from sandpool.server.controllers.namespaces import (
    ROOT_CA,
    NamespaceController,
    RemainingObject,
    check_create,
    conditions,
    initial_namespaces,
    next_to_delete,
)
from sandpool.server.controllers.owner_graph import Ref


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

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
        self.undeletable: set[str] = set()
        self.restart()

    def restart(self) -> None:
        self.controller = NamespaceController(self, Clock(), Random(0), "PEM")
        self.controller.start()

    def namespaces(self) -> Iterable[str]:
        return [ref.name for ref in self.objects if ref.resource == "namespaces"]

    def get(self, ref: Ref) -> Object | None:
        return self.objects.get(ref)

    def contents(self, namespace: str) -> Iterable[tuple[Ref, Object]]:
        return [(ref, obj) for ref, obj in self.objects.items() if ref.namespace == namespace]

    async def create(self, ref: Ref, obj: Object) -> None:
        await self._write("create", ref)
        if ref in self.objects:
            raise AlreadyExists("exists")
        self.put(ref, obj)

    async def patch(self, ref: Ref, patch: Object, subresource: str = "") -> None:
        await self._write(f"patch {subresource}".strip(), ref)
        self.put(ref, merge_patch(self._current(ref), patch))

    async def delete(self, ref: Ref, *, uid: str) -> None:
        await self._write("delete", ref)
        obj = self._current(ref)
        if obj["metadata"]["uid"] != uid:
            raise Conflict("another one")
        if ref.name in self.undeletable:
            raise Forbidden("not this one")
        self.put(ref, merge_patch(obj, {"metadata": {"deletionTimestamp": "now"}}))

    async def finalize(self, namespace: Object) -> None:
        ref = Ref("namespaces", "", namespace["metadata"]["name"])
        await self._write("finalize", ref)
        if self._current(ref)["metadata"]["resourceVersion"] != namespace["metadata"]["resourceVersion"]:
            raise Conflict("changed")
        self.put(ref, namespace)

    async def _write(self, verb: str, ref: Ref) -> None:
        self.writes.append(f"{verb} {ref.name}")
        await asyncio.sleep(0)

    def _current(self, ref: Ref) -> Object:
        if ref not in self.objects:
            raise NotFound("gone")
        return self.objects[ref]

    def put(self, ref: Ref, obj: Object) -> None:
        metadata = obj["metadata"]
        metadata = {"uid": f"uid-{next(self.versions)}", **metadata, "resourceVersion": str(next(self.versions))}
        obj = {**obj, "metadata": metadata}
        held = metadata.get("finalizers") or (obj.get("spec") or {}).get("finalizers")
        type = "MODIFIED" if ref in self.objects else "ADDED"
        if metadata.get("deletionTimestamp") and not held:
            del self.objects[ref]
            type = "DELETED"
        else:
            self.objects[ref] = obj
        resources = self.controller.resources
        if resources is None or ref.resource in resources:  # as the server calls it
            self.controller.notice(type, ref, obj)

    # what a test does

    def namespace(self, name: str, *finalizers: str) -> Ref:
        ref = Ref("namespaces", "", name)
        spec = {"finalizers": ["kubernetes", *finalizers]}
        self.put(ref, {"metadata": {"name": name}, "spec": spec, "status": {"phase": "Active"}})
        return ref

    def thing(self, name: str, *finalizers: str, resource: str = "configmaps", namespace: str = "n") -> Ref:
        ref = Ref(resource, namespace, name)
        self.put(ref, {"metadata": {"name": name, "namespace": namespace, "finalizers": list(finalizers)}})
        return ref

    def doom(self, ref: Ref) -> None:
        change = {"metadata": {"deletionTimestamp": "now"}, "status": {"phase": "Terminating"}}
        self.put(ref, merge_patch(self.objects[ref], change))

    def release(self, ref: Ref) -> None:
        self.put(ref, merge_patch(self.objects[ref], {"metadata": {"finalizers": None}}))

    def names(self) -> set[str]:
        return {ref.name for ref in self.objects}

    def condition(self, ref: Ref, type: str) -> Object:
        found: Object = next(c for c in self.objects[ref]["status"]["conditions"] if c["type"] == type)
        return found

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


async def test_new_namespace_gets_a_service_account_and_the_root_ca() -> None:
    memory = Memory()
    memory.namespace("n")
    await memory.settle()
    assert memory.names() == {"n", "default", ROOT_CA}
    assert memory.objects[Ref("configmaps", "n", ROOT_CA)]["data"] == {"ca.crt": "PEM"}


async def test_deleted_service_account_and_root_ca_are_restored() -> None:
    memory = Memory()
    memory.namespace("n")
    await memory.settle()
    bundle = Ref("configmaps", "n", ROOT_CA)
    await memory.patch(bundle, {"data": {"ca.crt": "forged", "more": "x"}})
    memory.doom(Ref("serviceaccounts", "n", "default"))
    await memory.settle()
    assert memory.names() == {"n", "default", ROOT_CA}
    assert memory.objects[bundle]["data"] == {"ca.crt": "PEM"}


async def test_root_ca_is_not_published_without_a_certificate() -> None:
    memory = Memory()
    memory.controller.root_ca = None
    memory.namespace("n")
    await memory.settle()
    assert memory.names() == {"n", "default"}


async def test_deleting_a_namespace_deletes_only_its_objects() -> None:
    memory = Memory()
    namespace = memory.namespace("n")
    memory.thing("a")
    memory.thing("b", resource="sandboxes.agents.x-k8s.io")
    memory.thing("other", namespace="m")
    await memory.settle()
    memory.doom(namespace)
    await memory.settle()
    assert memory.names() == {"other"}


async def test_pods_are_deleted_before_other_objects() -> None:
    memory = Memory()
    namespace = memory.namespace("n")
    pod = memory.thing("pod", "example.com/slow", resource="pods")
    memory.thing("secret", resource="secrets")
    memory.doom(namespace)
    await memory.settle()
    assert memory.names() == {"n", "pod", "secret"}
    assert memory.condition(namespace, "NamespaceContentRemaining")["status"] == "True"
    memory.release(pod)
    await memory.settle()
    assert memory.names() == set()


async def test_remaining_objects_are_reported_in_conditions() -> None:
    memory = Memory()
    namespace = memory.namespace("n", "example.com/namespace")
    stuck = memory.thing("stuck", "example.com/hold")
    memory.thing("loose")
    memory.doom(namespace)
    await memory.settle()
    assert memory.names() == {"n", "stuck"}
    assert {
        c["type"]: (c["status"], c["reason"], c["message"]) for c in memory.objects[namespace]["status"]["conditions"]
    } == {
        "NamespaceDeletionDiscoveryFailure": ("False", "ResourcesDiscovered", "All resources successfully discovered"),
        "NamespaceDeletionGroupVersionParsingFailure": (
            "False",
            "ParsedGroupVersions",
            "All legacy kube types successfully parsed",
        ),
        "NamespaceDeletionContentFailure": (
            "False",
            "ContentDeleted",
            "All content successfully deleted, may be waiting on finalization",
        ),
        "NamespaceContentRemaining": (
            "True",
            "SomeResourcesRemain",
            "Some resources are remaining: configmaps. has 1 resource instances",
        ),
        "NamespaceFinalizersRemaining": (
            "True",
            "SomeFinalizersRemain",
            "Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances",
        ),
    }
    memory.release(stuck)
    await memory.settle()
    # The namespace's other finalizer belongs to another controller.
    assert memory.names() == {"n"}
    assert memory.objects[namespace]["spec"]["finalizers"] == ["example.com/namespace"]
    assert memory.condition(namespace, "NamespaceContentRemaining")["reason"] == "ContentRemoved"


async def test_failed_deletion_is_reported_in_a_condition_and_retried() -> None:
    memory = Memory()
    namespace = memory.namespace("n")
    memory.thing("precious")
    memory.undeletable.add("precious")
    memory.doom(namespace)
    async with memory.running():
        for _ in range(100):
            await asyncio.sleep(0)
        failure = memory.condition(namespace, "NamespaceDeletionContentFailure")
        assert failure["status"] == "True"
        assert failure["message"] == "Failed to delete all resource types, 1 remaining: not this one"
        memory.undeletable.clear()
        for _ in range(100):
            await asyncio.sleep(0)
    assert memory.names() == set()


async def test_thousand_objects_cost_one_write_each() -> None:
    memory = Memory()
    namespace = memory.namespace("n")
    for index in range(1000):
        memory.thing(f"t{index}")
    memory.doom(namespace)
    await memory.settle()
    assert memory.names() == set()
    assert len(memory.writes) <= 1010


@pytest.mark.parametrize("steps", range(0, 40, 3))
async def test_crash_at_any_write_is_repaired_at_the_next_start(steps: int) -> None:
    memory = Memory()
    namespace = memory.namespace("n")
    memory.thing("pod", resource="pods")
    for name in "abc":
        memory.thing(name)
    memory.namespace("m")
    memory.doom(namespace)
    async with memory.running():
        for _ in range(steps):
            await asyncio.sleep(0)
    memory.restart()
    await memory.settle()
    assert memory.names() == {"m", "default", ROOT_CA}


def items(**held: bool) -> dict[Ref, RemainingObject]:
    return {
        Ref(name.rstrip("0123456789"), "n", name): RemainingObject(name, deleting, ())
        for name, deleting in held.items()
    }


def test_next_to_delete_returns_pods_first() -> None:
    assert next_to_delete({}) == []
    assert [ref.name for ref in next_to_delete(items(pods1=False, pods2=True, secrets1=False))] == ["pods1"]
    assert next_to_delete(items(pods1=True, secrets1=False)) == []
    assert [ref.name for ref in next_to_delete(items(secrets1=False, configmaps1=True))] == ["secrets1"]


def test_unchanged_conditions_are_not_rewritten() -> None:
    said = conditions([], items(secrets1=True), [], "t1")
    assert conditions(said, items(secrets1=True), [], "t2") is said
    changed = conditions(said, items(secrets1=True, secrets2=True), [], "t2")
    assert {c["lastTransitionTime"] for c in changed} == {"t1"}
    done = conditions(said, {}, [], "t2")
    assert [c["lastTransitionTime"] for c in done] == ["t1", "t1", "t1", "t2", "t1"]


def test_foreign_conditions_are_kept() -> None:
    foreign = {"type": "Foreign", "status": "True", "reason": "r", "message": "m", "lastTransitionTime": "t0"}
    assert foreign in conditions([foreign], {}, [], "t1")


def test_create_in_a_missing_namespace_is_not_found() -> None:
    with pytest.raises(NotFound) as caught:
        check_create(None, "nope", CONFIG_MAP, "c")
    assert caught.value.message == 'namespaces "nope" not found'
    assert caught.value.details == {"name": "nope", "kind": "namespaces"}


def test_create_in_a_terminating_namespace_is_forbidden() -> None:
    with pytest.raises(ApiError) as caught:
        check_create({"status": {"phase": "Terminating"}}, "t", CONFIG_MAP, "late")
    assert caught.value.code == 403
    assert caught.value.message == (
        'configmaps "late" is forbidden: unable to create new content in namespace t because it is being terminated'
    )
    assert caught.value.details == {
        "name": "late",
        "kind": "configmaps",
        "causes": [
            {
                "reason": "NamespaceTerminating",
                "message": "namespace t is being terminated",
                "field": "metadata.namespace",
            }
        ],
    }


def test_create_in_an_active_namespace_is_allowed() -> None:
    check_create({"status": {"phase": "Active"}}, "n", POD, "p")


def test_new_cluster_has_its_initial_namespaces() -> None:
    names = [namespace["metadata"]["name"] for namespace in initial_namespaces()]
    assert names == ["default", "kube-system", "kube-public", "kube-node-lease"]
