"""The life of a namespace: what it starts with, who may create in it, and how it goes with everything in it.

Deleting a namespace only marks it. Its content is then deleted, pods first, and when nothing is left the finalizer
``kubernetes`` is taken from ``spec.finalizers``; without finalizers the namespace goes. What does not go, because it
has finalizers of its own or cannot be deleted, is said in conditions.

The keeper follows the feed of committed changes and remembers only what is left in namespaces that are going, which
it reads again after a crash.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from sandpool.api.kinds import NAMESPACE, NODE_LEASES
from sandpool.api.resource import Object, ResourceType
from sandpool.engine.clock import Clock, timestamp
from sandpool.kube.errors import AlreadyExists, ApiError, Forbidden, NotFound, forbidden, not_found
from sandpool.server.controllers.backlog import Backlog
from sandpool.server.controllers.owner_graph import Ref
from sandpool.server.kinds.namespaces import FINALIZER

INITIAL: Final = ("default", "kube-system", "kube-public", NODE_LEASES)
ROOT_CA: Final = "kube-root-ca.crt"
_ROOT_CA_ANNOTATIONS: Final = {
    "kubernetes.io/description": (
        "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the "
        "internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of "
        "Kubernetes clusters."
    )
}
# How often the conditions of a namespace follow the numbers of what is left in it.
_CALM: Final = 1.0


class Objects(Protocol):
    """The store, as the keeper needs it."""

    def namespaces(self) -> Iterable[str]: ...

    def get(self, ref: Ref) -> Object | None:
        """The newest state of an object."""

    def contents(self, namespace: str) -> Iterable[tuple[Ref, Object]]:
        """Everything that is in a namespace, of every resource."""

    async def create(self, ref: Ref, obj: Object) -> None:
        """Raises AlreadyExists."""

    async def patch(self, ref: Ref, merge_patch: Object, subresource: str = "") -> None:
        """Raises NotFound, and Conflict if ``metadata.resourceVersion`` is not the current one."""

    async def delete(self, ref: Ref, *, uid: str) -> None:
        """Delete with background propagation. Raises NotFound, and Conflict if the uid is another."""

    async def finalize(self, namespace: Object) -> None:
        """Replace ``spec.finalizers`` (the finalize subresource). Raises NotFound and Conflict."""


def initial_namespaces() -> list[Object]:
    """The namespaces a cluster has from the beginning."""
    return [{"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}} for name in INITIAL]


def check_create(namespace: Object | None, name: str, type: ResourceType, object_name: str) -> None:
    """Raise unless something may be created in a namespace, given as it is or None if there is none."""
    if namespace is None:
        raise not_found(NAMESPACE, name)
    if (namespace.get("status") or {}).get("phase") != "Terminating":
        return
    why = f"unable to create new content in namespace {name} because it is being terminated"
    refusal = forbidden(type, object_name, why)
    cause = {
        "reason": "NamespaceTerminating",
        "message": f"namespace {name} is being terminated",
        "field": "metadata.namespace",
    }
    raise Forbidden(refusal.message, details={**refusal.details, "causes": [cause]})


# Decisions ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Item:
    """Something that is left in a namespace that goes."""

    uid: str
    deleting: bool
    finalizers: tuple[str, ...]

    @staticmethod
    def of(obj: Object) -> Item:
        metadata = obj["metadata"]
        deleting = bool(metadata.get("deletionTimestamp"))
        return Item(metadata["uid"], deleting, tuple(metadata.get("finalizers") or ()))


def next_to_delete(items: Mapping[Ref, Item]) -> list[Ref]:
    """What to delete now. Pods go first: as long as one is there, what it lives on stays."""
    pods = [ref for ref in items if ref.resource == "pods"]
    return [ref for ref in pods or items if not items[ref].deleting]


def conditions(before: list[Object], items: Mapping[Ref, Item], failures: Iterable[str], now: str) -> list[Object]:
    """The conditions of a namespace in which this much is left; the same list if they say what they said before."""
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


def _remaining(items: Mapping[Ref, Item]) -> tuple[bool, str, str]:
    if not items:
        return False, "ContentRemoved", "All content successfully removed"
    counts = Counter(ref.resource.partition(".")[::2] for ref in items)
    listed = sorted(f"{plural}.{group} has {number} resource instances" for (plural, group), number in counts.items())
    return True, "SomeResourcesRemain", f"Some resources are remaining: {', '.join(listed)}"


def _held(items: Mapping[Ref, Item]) -> tuple[bool, str, str]:
    counts = Counter(finalizer for item in items.values() for finalizer in item.finalizers)
    if not counts:
        return False, "ContentHasNoFinalizers", "All content-preserving finalizers finished"
    listed = sorted(f"{finalizer} in {number} resource instances" for finalizer, number in counts.items())
    why = f"Some content in the namespace has finalizers remaining: {', '.join(listed)}"
    return True, "SomeFinalizersRemain", why


def _says_more_than_numbers(new: list[Object], old: list[Object]) -> bool:
    def gist(them: list[Object]) -> list[tuple[str, str, str]]:
        return [(condition["type"], condition["status"], condition["reason"]) for condition in them]

    return gist(new) != gist(old)


# The keeper ---------------------------------------------------------------------------------------------------------


class NamespaceController:
    def __init__(self, objects: Objects, clock: Clock, root_ca: str | None = None) -> None:
        self.objects = objects
        self.clock = clock
        self.root_ca = root_ca  # PEM, published in every namespace; None publishes nothing
        self.backlog: Backlog[str] = Backlog(self._look_after, clock)
        self._left: dict[str, dict[Ref, Item]] = {}  # by namespace that goes: everything that is still in it
        self._spoken: dict[str, float] = {}  # by namespace that goes: when its conditions were written last

    async def run(self) -> None:
        """Look after namespaces until cancelled, beginning with ``start``."""
        self.start()
        await self.backlog.run()

    def start(self) -> None:
        """Look at every namespace. No change may be committed between this and the first call of ``notice``."""
        for name in self.objects.namespaces():
            self.backlog.add(name)

    def notice(self, type: str, ref: Ref, obj: Object) -> None:
        """A committed change: ADDED, MODIFIED or DELETED, with the object as it is or was."""
        if ref.resource == "namespaces":
            if type == "DELETED":
                self._left.pop(ref.name, None)
                self._spoken.pop(ref.name, None)
            else:
                self.backlog.add(ref.name)
            return
        left = self._left.get(ref.namespace)
        if left is not None:
            self._follow(type, ref, obj, left)
        elif (ref.resource, ref.name) in _STARTERS:
            self.backlog.add(ref.namespace)

    def _follow(self, type: str, ref: Ref, obj: Object, left: dict[Ref, Item]) -> None:
        before = left.pop(ref, None)
        if type != "DELETED":
            left[ref] = Item.of(obj)
            if left[ref] == before:
                return
            moves_on = not left[ref].deleting
        else:
            moves_on = not left or (ref.resource == "pods" and not any(each.resource == "pods" for each in left))
        # Only something new, the last pod and the last object of all move things on; the numbers may lag.
        if moves_on:
            self.backlog.add(ref.namespace)
        else:
            self.backlog.add_later(ref.namespace, _CALM)

    async def _look_after(self, name: str) -> None:
        namespace = self.objects.get(Ref("namespaces", "", name))
        if namespace is None:
            return
        try:
            if namespace["metadata"].get("deletionTimestamp"):
                await self._empty(name, namespace)
            else:
                await self._furnish(name)
        except NotFound:
            return  # it went meanwhile

    # -- the beginning -----------------------------------------------------------------------------------------------

    async def _furnish(self, name: str) -> None:
        """Give a namespace its default account and the certificate its pods trust the server by."""
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
            return  # somebody else was faster, or the namespace goes already

    # -- the end -----------------------------------------------------------------------------------------------------

    async def _empty(self, name: str, namespace: Object) -> None:
        finalizers = (namespace.get("spec") or {}).get("finalizers") or []
        if FINALIZER not in finalizers:
            return
        if name not in self._left:
            self._left[name] = {ref: Item.of(obj) for ref, obj in self.objects.contents(name)}
        left = self._left[name]
        failures: list[ApiError] = []
        while (doomed := next_to_delete(left)) and not failures:
            failures = await self._delete(doomed, left)
        await self._say(name, namespace, left, [str(failure) for failure in failures])
        if failures:
            raise failures[0]
        newest = self.objects.get(Ref("namespaces", "", name))
        if not left and newest is not None:
            remaining = [finalizer for finalizer in finalizers if finalizer != FINALIZER]
            await self.objects.finalize({**newest, "spec": {**newest["spec"], "finalizers": remaining}})

    async def _delete(self, refs: list[Ref], left: Mapping[Ref, Item]) -> list[ApiError]:
        """Delete at once what is to be deleted; gives what went wrong."""
        deletions = (self.objects.delete(ref, uid=left[ref].uid) for ref in refs)
        results = await asyncio.gather(*deletions, return_exceptions=True)
        failures = []
        for result in results:
            if isinstance(result, ApiError) and not isinstance(result, NotFound):
                failures.append(result)
            elif isinstance(result, BaseException) and not isinstance(result, NotFound):
                raise result
        return failures

    async def _say(self, name: str, namespace: Object, left: Mapping[Ref, Item], failures: list[str]) -> None:
        """Write the conditions, if they say something new."""
        before = (namespace.get("status") or {}).get("conditions") or []
        said = conditions(before, left, failures, timestamp(self.clock.now()))
        if said is before or (not left and not before):
            return
        now = self.clock.monotonic()
        if not _says_more_than_numbers(said, before) and now - self._spoken.get(name, 0.0) < _CALM:
            self.backlog.add_later(name, _CALM)
            return
        self._spoken[name] = now
        await self.objects.patch(Ref("namespaces", "", name), {"status": {"conditions": said}}, "status")


_STARTERS: Final = frozenset({("serviceaccounts", "default"), ("configmaps", ROOT_CA)})
