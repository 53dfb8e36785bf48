"""The pod of a sandbox: which one it is, and whether to make, change or delete it.

A sandbox has one pod. It is the one whose controller reference bears the sandbox's UID, whatever else claims to be it:
anybody can write a label, and the pod-name annotation is a hint for readers that may be out of date. If two pods are
owned, choosing between them could destroy somebody's work, so nothing is touched.

Pods bear the sandbox's name unless one of another name was adopted, and readers take that for granted where there is no
annotation. So the annotation is written only where it says something else, and taken away where what it says is wrong.
One that repeats the sandbox's name, as members of pools are created with, is neither.

The spec of an existing pod is never changed, and a pod that has ended is not replaced.

The labels and annotations of a sandbox's pod, when it is made and as they change afterwards.

Three parties write them. The *author* of the pod template: what was copied from there is listed in two annotations of
the pod, so that it can be taken away again when the author removes it. *We*: a few labels under our own prefixes, by
which pods are found, selected by policies and counted; the author has no say about keys under these prefixes.
*Everybody else*: what is neither listed nor ours is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from sandpool.api import labels
from sandpool.api.kinds import EXTENSIONS_GROUP, POD, SANDBOX, SANDBOX_WARM_POOL
from sandpool.api.resource import Object
from sandpool.api.views import PodView, SandboxView, adopted_by, controller_reference
from sandpool.controllers.sandbox.ownership import precondition, refusal, tracking_labels
from sandpool.controllers.sandbox.volumes import pod_volumes
from sandpool.controllers.writer import Create, Delete, Patch
from sandpool.kube.patches import merge_diff


@dataclass(frozen=True, slots=True)
class PodPlan:
    """``repair`` corrects the pod-name annotation and comes first.

    Two answers mean that there is a pod we did not see, to plan again with as the tracked one: a Create that is
    answered by 409 AlreadyExists, and finding the pod ``refresh``. That one is named by the annotation and not known
    to us, which may be news that has not arrived, so the API itself is asked before the plan is performed; else the
    sandbox of somebody who prepared a pod just now would get a second one."""

    pod: PodView | None = None  # what the status is about, unless a create brings another
    refresh: str = ""
    repair: Patch | None = None
    write: Create | Patch | Delete | None = None
    deferrable: bool = False  # whether the write may wait, because neither ownership nor existence is at stake
    count: int = 0  # how many pods are owned if that is too many, else 0
    error: str = ""


def owned_pods(sandbox: SandboxView, children: Iterable[PodView], tracked: PodView | None) -> list[PodView]:
    """``children`` are the pods whose owner has the sandbox's UID, as far as the cache knows; ``tracked`` may be newer
    than that."""
    owned = [pod for pod in children if pod.controlled_by(sandbox)]
    if tracked is not None and tracked.controlled_by(sandbox) and all(pod.uid != tracked.uid for pod in owned):
        owned.append(tracked)
    return owned


def plan_pod(sandbox: SandboxView, children: Iterable[PodView], tracked: PodView | None) -> PodPlan:
    """``tracked`` is the pod of the name ``sandbox.pod_name``."""
    owned = owned_pods(sandbox, children, tracked)
    if len(owned) > 1:
        return PodPlan(repair=None if tracked is not None else _repair(sandbox, None), count=len(owned))
    pod = owned[0] if owned else tracked
    if sandbox.suspended:
        return _plan_suspended(sandbox, pod, tracked)
    if pod is None:
        refresh = sandbox.pod_name if sandbox.pod_name != sandbox.name else ""
        return PodPlan(refresh=refresh, repair=_repair(sandbox, None), write=Create(POD, new_pod(sandbox)))
    if error := refusal("pod", pod, sandbox):
        # A pod of nobody may become adoptable yet, and the hint is how it would be found.
        return PodPlan(repair=_repair(sandbox, None) if pod.owner is not None else None, error=error)
    body = metadata_patch(pod, sandbox)
    return PodPlan(
        pod,
        repair=_repair(sandbox, pod),
        write=Patch(POD, pod.name, body) if body is not None else None,
        deferrable=pod.owner is not None,
    )


def new_pod(sandbox: SandboxView) -> Object:
    spec = sandbox.pod_template.get("spec") or {}
    if claimed := pod_volumes(sandbox):
        # Two volumes of one name are not allowed; the volume claim template wins, since it is what users add on top.
        names = {volume["name"] for volume in claimed}
        kept = [volume for volume in spec.get("volumes") or () if volume.get("name") not in names]
        spec = {**spec, "volumes": [*kept, *claimed]}
    return {"apiVersion": POD.api_version, "kind": POD.kind, "metadata": new_metadata(sandbox), "spec": spec}


def _plan_suspended(sandbox: SandboxView, pod: PodView | None, tracked: PodView | None) -> PodPlan:
    if pod is None or not pod.controlled_by(sandbox):
        return PodPlan(pod, repair=_repair(sandbox, None))
    # While the pod is there, a hint that is right is kept.
    misleading = tracked is None or tracked.uid != pod.uid
    return PodPlan(
        pod,
        repair=_repair(sandbox, None) if misleading else None,
        write=None if pod.deleting else Delete(POD, pod.name, pod.uid),
    )


def _repair(sandbox: SandboxView, pod: PodView | None) -> Patch | None:
    """The patch that makes the annotation lead to ``pod``; without a pod, nowhere but to the sandbox's own name."""
    written = sandbox.annotations.get(labels.POD_NAME)
    name = pod.name if pod is not None else sandbox.name
    if written == name or (written is None and name == sandbox.name):
        return None
    value = name if name != sandbox.name else None
    return Patch(SANDBOX, sandbox.name, {"metadata": {"annotations": {labels.POD_NAME: value}}})


_LISTS: Final = frozenset({labels.PROPAGATED_LABELS, labels.PROPAGATED_ANNOTATIONS})


@dataclass(frozen=True, slots=True)
class _Wanted:
    author_labels: dict[str, str]
    author_annotations: dict[str, str]
    own_labels: dict[str, str | None]  # None: must not be there


def new_metadata(sandbox: SandboxView) -> Object:
    """The metadata of the pod to be created."""
    wanted = _wanted(sandbox)
    own = {key: value for key, value in wanted.own_labels.items() if value is not None}
    lists = {
        labels.PROPAGATED_LABELS: _listed(wanted.author_labels),
        labels.PROPAGATED_ANNOTATIONS: _listed(wanted.author_annotations),
    }
    annotations = {**wanted.author_annotations, **{key: value for key, value in lists.items() if value}}
    metadata: Object = {
        "name": sandbox.name,
        "namespace": sandbox.namespace,
        "labels": {**wanted.author_labels, **own},
        "ownerReferences": [controller_reference(SANDBOX, sandbox)],
    }
    if annotations:
        metadata["annotations"] = annotations
    return metadata


def metadata_patch(pod: PodView, sandbox: SandboxView) -> Object | None:
    """The merge patch that brings the metadata of an existing pod up to date; None if it is. A pod of nobody becomes
    the sandbox's by the same patch."""
    wanted = _wanted(sandbox)
    new_labels = _reconciled(
        pod.labels,
        pod.annotations.get(labels.PROPAGATED_LABELS, ""),
        wanted.author_labels,
        labels.is_reserved_label,
    )
    for key, value in wanted.own_labels.items():
        if value is None:
            new_labels.pop(key, None)
        else:
            new_labels[key] = value
    new_annotations = _reconciled(
        pod.annotations,
        pod.annotations.get(labels.PROPAGATED_ANNOTATIONS, ""),
        wanted.author_annotations,
        labels.is_reserved_annotation,
        keep=_LISTS,
    )
    _list(new_annotations, labels.PROPAGATED_LABELS, wanted.author_labels)
    _list(new_annotations, labels.PROPAGATED_ANNOTATIONS, wanted.author_annotations)

    before: Object = {"labels": pod.labels, "annotations": pod.annotations}
    after: Object = {"labels": new_labels, "annotations": new_annotations}
    if pod.owner is None:
        after["ownerReferences"] = adopted_by(pod, SANDBOX, sandbox)
    change = merge_diff(before, after)
    if change is None:
        return None
    return {"metadata": {**precondition(pod), **change}}


def _wanted(sandbox: SandboxView) -> _Wanted:
    given = sandbox.pod_template.get("metadata") or {}
    return _Wanted(
        _allowed(given.get("labels"), labels.is_reserved_label),
        _allowed({**_pool_annotations(sandbox), **(given.get("annotations") or {})}, labels.is_reserved_annotation),
        {**tracking_labels(sandbox), **_extension_labels(sandbox), labels.CREATED_BY: _creator(sandbox)},
    )


def _extension_labels(sandbox: SandboxView) -> dict[str, str | None]:
    """Labels that come from a pool or a claim. Policies select pods by them and pools count by them, so they are
    believed only on a sandbox that one of those owns: a label alone anybody can write."""
    owner = sandbox.owner
    extended = owner is not None and owner.group == EXTENSIONS_GROUP
    pooled = owner is not None and owner.is_a(SANDBOX_WARM_POOL)
    return {
        labels.WARM_POOL: (sandbox.labels.get(labels.WARM_POOL) or None) if pooled else None,
        labels.TEMPLATE_REF_HASH: (sandbox.labels.get(labels.TEMPLATE_REF_HASH) or None) if extended else None,
    }


def _pool_annotations(sandbox: SandboxView) -> dict[str, str]:
    """What a pool says about the pods of its members on the author's behalf, who may say otherwise. It is listed with
    what the author said, and goes with the pool: a claimed sandbox is not to be evicted."""
    evictable = sandbox.annotations.get(labels.SAFE_TO_EVICT)
    pooled = sandbox.owner is not None and sandbox.owner.is_a(SANDBOX_WARM_POOL)
    return {labels.SAFE_TO_EVICT: evictable} if pooled and evictable else {}


def _creator(sandbox: SandboxView) -> str | None:
    creator = sandbox.labels.get(labels.CREATED_BY)
    return labels.normal_creator(creator) if creator else None


def _allowed(given: Mapping[str, str] | None, reserved: Callable[[str], bool]) -> dict[str, str]:
    return {key: value for key, value in (given or {}).items() if not reserved(key)}


def _reconciled(
    current: Mapping[str, str],
    propagated: str,
    wanted: Mapping[str, str],
    reserved: Callable[[str], bool],
    keep: Collection[str] = (),
) -> dict[str, str]:
    """What is there, without what was copied from the template and is no longer in it, and with what is. A reserved key
    in the list is from a controller that let authors set it; it goes unless we keep something there ourselves."""
    result = dict(current)
    for key in propagated.split(","):
        stale = key not in keep if reserved(key) else key not in wanted
        if stale:
            result.pop(key, None)
    result.update(wanted)
    return result


def _listed(keys: Collection[str]) -> str:
    return ",".join(sorted(keys))


def _list(annotations: dict[str, str], name: str, keys: Collection[str]) -> None:
    """Record the keys. A missing list means an empty one, so that is not written; one that was there stays, empty."""
    if keys or name in annotations:
        annotations[name] = _listed(keys)
