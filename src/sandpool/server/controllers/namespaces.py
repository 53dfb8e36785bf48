"""The namespace controller: initial content of a namespace, and its termination.

Deleting a namespace only marks it. The controller deletes its content, pods first, and when nothing is left it removes
the finalizer ``kubernetes`` from ``spec.finalizers``; without finalizers the namespace is removed. Conditions report
content that remains because of finalizers or failures.

The controller observes committed changes. Its only state is the remaining content of terminating namespaces, which it
reads again after a restart.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol

from sandpool.api.kinds import NAMESPACE, NODE_LEASES
from sandpool.api.resource import Object, ResourceType
from sandpool.engine.clock import Clock, timestamp
from sandpool.engine.controller import DONE, Controller, Result
from sandpool.kube.errors import AlreadyExists, ApiError, Forbidden, NotFound, namespace_terminating, not_found
from sandpool.server.controllers.owner_graph import Ref
from sandpool.server.kinds.namespaces import FINALIZER

_WORKERS: Final = 16
INITIAL: Final = ("default", "kube-system", "kube-public", NODE_LEASES)
ROOT_CA: Final = "kube-root-ca.crt"
_ROOT_CA_ANNOTATIONS: Final = {
    "kubernetes.io/description": (
        "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the "
        "internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of "
        "Kubernetes clusters."
    )
}
# Seconds between two updates of conditions in which only the counts of remaining objects differ.
_COUNTS_INTERVAL: Final = 1.0


class Objects(Protocol):
    """The operations that the controller needs."""

    def namespaces(self) -> Iterable[str]: ...

    def get(self, ref: Ref) -> Object | None:
        """The newest accepted state of an object."""

    def contents(self, namespace: str) -> Iterable[tuple[Ref, Object]]:
        """All objects of a namespace, of all resources."""

    async def create(self, ref: Ref, obj: Object) -> None:
        """Raises AlreadyExists."""

    async def patch(self, ref: Ref, merge_patch: Object, subresource: str = "") -> None:
        """Raises NotFound, and Conflict if ``metadata.resourceVersion`` is outdated."""

    async def delete(self, ref: Ref, *, uid: str) -> None:
        """Delete with background propagation. Raises NotFound, and Conflict if the uid differs."""

    async def finalize(self, namespace: Object) -> None:
        """Replace ``spec.finalizers`` (the finalize subresource). Raises NotFound and Conflict."""


def initial_namespaces() -> list[Object]:
    """The initial namespaces of a cluster."""
    return [{"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}} for name in INITIAL]


def check_create(namespace: Object | None, name: str, type: ResourceType, object_name: str) -> None:
    """Raise if ``namespace`` does not exist (None) or is terminating."""
    if namespace is None:
        raise not_found(NAMESPACE, name)
    if (namespace.get("status") or {}).get("phase") != "Terminating":
        return
    raise namespace_terminating(type, object_name, name)


# Decisions ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RemainingObject:
    """An object that remains in a terminating namespace."""

    uid: str
    deleting: bool
    finalizers: tuple[str, ...]

    @staticmethod
    def of(obj: Object) -> RemainingObject:
        metadata = obj["metadata"]
        deleting = bool(metadata.get("deletionTimestamp"))
        return RemainingObject(metadata["uid"], deleting, tuple(metadata.get("finalizers") or ()))


def next_to_delete(items: Mapping[Ref, RemainingObject]) -> list[Ref]:
    """The objects to delete now. Pods go first: other objects stay until the last pod is gone."""
    pods = [ref for ref in items if ref.resource == "pods"]
    return [ref for ref in pods or items if not items[ref].deleting]


def conditions(
    before: list[Object], items: Mapping[Ref, RemainingObject], failures: Iterable[str], now: str
) -> list[Object]:
    """The conditions of a namespace with these remaining objects; the same list if they are unchanged."""
    wanted = [
        ("NamespaceDeletionDiscoveryFailure", False, "ResourcesDiscovered", "All resources successfully discovered"),
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            False,
            "ParsedGroupVersions",
            "All legacy kube types successfully parsed",
        ),
        ("NamespaceDeletionContentFailure", *_failure(sorted(failures))),
        ("NamespaceContentRemaining", *_remaining(items)),
        ("NamespaceFinalizersRemaining", *_held(items)),
    ]
    present = {condition.get("type"): condition for condition in before}
    made = []
    for type, problem, reason, message in wanted:
        condition = {"type": type, "status": "True" if problem else "False", "reason": reason, "message": message}
        was = present.get(type, {})
        since = was.get("lastTransitionTime") if was.get("status") == condition["status"] else None
        made.append({**condition, "lastTransitionTime": since or now})
    others = [condition for condition in before if condition.get("type") not in {type for type, *_ in wanted}]
    return before if [*others, *made] == before else [*others, *made]


def _failure(failures: list[str]) -> tuple[bool, str, str]:
    if not failures:
        return False, "ContentDeleted", "All content successfully deleted, may be waiting on finalization"
    listed = ", ".join(failures)
    return True, "ContentDeletionFailed", f"Failed to delete all resource types, {len(failures)} remaining: {listed}"


def _remaining(items: Mapping[Ref, RemainingObject]) -> tuple[bool, str, str]:
    if not items:
        return False, "ContentRemoved", "All content successfully removed"
    counts = Counter(ref.resource.partition(".")[::2] for ref in items)
    listed = sorted(f"{plural}.{group} has {number} resource instances" for (plural, group), number in counts.items())
    return True, "SomeResourcesRemain", f"Some resources are remaining: {', '.join(listed)}"


def _held(items: Mapping[Ref, RemainingObject]) -> tuple[bool, str, str]:
    counts = Counter(finalizer for item in items.values() for finalizer in item.finalizers)
    if not counts:
        return False, "ContentHasNoFinalizers", "All content-preserving finalizers finished"
    listed = sorted(f"{finalizer} in {number} resource instances" for finalizer, number in counts.items())
    why = f"Some content in the namespace has finalizers remaining: {', '.join(listed)}"
    return True, "SomeFinalizersRemain", why


def _differs_in_more_than_counts(new: list[Object], old: list[Object]) -> bool:
    def summary(them: list[Object]) -> list[tuple[str, str, str]]:
        return [(condition["type"], condition["status"], condition["reason"]) for condition in them]

    return summary(new) != summary(old)


# The controller ------------------------------------------------------------------------------------------------------


class NamespaceController:
    def __init__(self, objects: Objects, clock: Clock, rng: Random, root_ca: str | None = None) -> None:
        self.objects = objects
        self.clock = clock
        self.root_ca = root_ca  # PEM, published in every namespace; None publishes nothing
        self.controller = Controller("namespace", self._reconcile, clock, rng, workers=_WORKERS, quiet_failures=4)
        self._left: dict[str, dict[Ref, RemainingObject]] = {}  # by terminating namespace: its remaining objects
        self._conditions_written: dict[
            str, float
        ] = {}  # by terminating namespace: when its conditions were last written

    @property
    def resources(self) -> Container[str] | None:
        """The resources whose changes ``notice`` handles: of all only while a namespace is terminating."""
        return None if self._left else _OBSERVED

    def start(self) -> None:
        """Enqueue every namespace. No change may be committed between this and the first call of ``notice``."""
        for name in self.objects.namespaces():
            self.controller.enqueue(name)

    def notice(self, type: str, ref: Ref, obj: Object) -> None:
        """Handle a committed change: ADDED, MODIFIED or DELETED, with the current or last state of the object."""
        if ref.resource == "namespaces":
            if type == "DELETED":
                self._left.pop(ref.name, None)
                self._conditions_written.pop(ref.name, None)
            else:
                self.controller.enqueue(ref.name)
            return
        left = self._left.get(ref.namespace)
        if left is not None:
            self._follow(type, ref, obj, left)
        elif (ref.resource, ref.name) in _INITIAL_OBJECTS:
            self.controller.enqueue(ref.namespace)

    def _follow(self, type: str, ref: Ref, obj: Object, left: dict[Ref, RemainingObject]) -> None:
        before = left.pop(ref, None)
        if type != "DELETED":
            left[ref] = RemainingObject.of(obj)
            if left[ref] == before:
                return
            makes_progress = not left[ref].deleting
        else:
            makes_progress = not left or (ref.resource == "pods" and not any(each.resource == "pods" for each in left))
        # Only a new object, the last pod and the last object allow progress; counts may lag.
        if makes_progress:
            self.controller.enqueue(ref.namespace)
        else:
            self.controller.enqueue_after(ref.namespace, _COUNTS_INTERVAL)

    async def _reconcile(self, name: str) -> Result:
        namespace = self.objects.get(Ref("namespaces", "", name))
        if namespace is None:
            return DONE
        try:
            if namespace["metadata"].get("deletionTimestamp"):
                await self._empty(name, namespace)
            else:
                await self._initialize(name)
        except NotFound:
            pass  # deleted meanwhile
        return DONE

    # -- initial content --------------------------------------------------------------------------------------------

    async def _initialize(self, name: str) -> None:
        """Create the default service account and the ConfigMap with the CA of the server."""
        account = Ref("serviceaccounts", name, "default")
        if self.objects.get(account) is None:
            await self._create(account, {"kind": "ServiceAccount", "apiVersion": "v1"})
        if self.root_ca is None:
            return
        bundle = Ref("configmaps", name, ROOT_CA)
        data = {"ca.crt": self.root_ca}
        present = self.objects.get(bundle)
        if present is None:
            content = {"metadata": {"annotations": _ROOT_CA_ANNOTATIONS}, "data": data}
            await self._create(bundle, {"kind": "ConfigMap", "apiVersion": "v1", **content})
        elif present.get("data") != data:
            others = {key: None for key in present.get("data") or {} if key not in data}
            await self.objects.patch(bundle, {"data": {**others, **data}})

    async def _create(self, ref: Ref, obj: Object) -> None:
        metadata = {**obj.get("metadata", {}), "name": ref.name, "namespace": ref.namespace}
        try:
            await self.objects.create(ref, {**obj, "metadata": metadata})
        except (AlreadyExists, Forbidden):
            return  # created by another client, or the namespace is terminating

    # -- termination --------------------------------------------------------------------------------------------------

    async def _empty(self, name: str, namespace: Object) -> None:
        finalizers = (namespace.get("spec") or {}).get("finalizers") or []
        if FINALIZER not in finalizers:
            return
        if name not in self._left:
            self._left[name] = {ref: RemainingObject.of(obj) for ref, obj in self.objects.contents(name)}
        left = self._left[name]
        failures: list[ApiError] = []
        while (deletable := next_to_delete(left)) and not failures:
            failures = await self._delete(deletable, left)
        await self._write_conditions(name, namespace, left, [str(failure) for failure in failures])
        if failures:
            raise failures[0]
        newest = self.objects.get(Ref("namespaces", "", name))
        if not left and newest is not None:
            remaining = [finalizer for finalizer in finalizers if finalizer != FINALIZER]
            await self.objects.finalize({**newest, "spec": {**newest["spec"], "finalizers": remaining}})

    async def _delete(self, refs: list[Ref], left: Mapping[Ref, RemainingObject]) -> list[ApiError]:
        """Delete objects concurrently; returns the failures."""
        deletions = (self.objects.delete(ref, uid=left[ref].uid) for ref in refs)
        results = await asyncio.gather(*deletions, return_exceptions=True)
        failures = []
        for result in results:
            if isinstance(result, ApiError) and not isinstance(result, NotFound):
                failures.append(result)
            elif isinstance(result, BaseException) and not isinstance(result, NotFound):
                raise result
        return failures

    async def _write_conditions(
        self, name: str, namespace: Object, left: Mapping[Ref, RemainingObject], failures: list[str]
    ) -> None:
        """Write the conditions if they have changed."""
        before = (namespace.get("status") or {}).get("conditions") or []
        wanted = conditions(before, left, failures, timestamp(self.clock.now()))
        if wanted is before or (not left and not before):
            return
        now = self.clock.monotonic()
        if (
            not _differs_in_more_than_counts(wanted, before)
            and now - self._conditions_written.get(name, 0.0) < _COUNTS_INTERVAL
        ):
            self.controller.enqueue_after(name, _COUNTS_INTERVAL)
            return
        self._conditions_written[name] = now
        await self.objects.patch(Ref("namespaces", "", name), {"status": {"conditions": wanted}}, "status")


_INITIAL_OBJECTS: Final = frozenset({("serviceaccounts", "default"), ("configmaps", ROOT_CA)})
_OBSERVED: Final = frozenset({"namespaces", *(resource for resource, _ in _INITIAL_OBJECTS)})
