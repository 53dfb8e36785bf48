"""The pod of a sandbox: which one it is, whether to create, change or delete it, and its labels and annotations.

A sandbox has one pod: the one whose controller reference has the UID of the sandbox. Labels and the pod-name annotation
are hints that any client can write and that may be out of date. If a sandbox owns two pods, choosing between them could
destroy work, so the controller touches neither.

A pod has the name of its sandbox unless one of another name was adopted, and readers assume that where there is no
annotation. So the annotation is written only for another name, and removed where it is wrong. One that repeats the name
of the sandbox, as members of pools are created with, is neither.

The spec of an existing pod is never changed, and a pod that has ended is not replaced. The spec of a new one is that of
the pod template with the claimed volumes. Two of its defaults differ from those of the API, and only where the author
of the template has said nothing:

* ``terminationMessagePolicy: FallbackToLogsOnError``. The last output of a container that fails is then part of the
  pod's status, and so of the conditions of sandbox, claim and pool.
* With the option ``small_requests``, a container that sets limits and no requests gets small requests
  (``sandpool.api.small_requests``) and not its limits.

The pods of a pool have one template, so the defaults are computed once for it.

Three parties write the labels and annotations of a pod:

* The *author* of the pod template. Two annotations of the pod list the keys that were copied from there, so that a key
  can be removed again when the author removes it.
* *This controller*: a few labels under our own prefixes, by which pods are found, selected by policies and counted. The
  author cannot set keys under these prefixes.
* *Other clients*. Keys that are neither listed nor ours are left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from sandpool.api import labels
from sandpool.api.kinds import EXTENSIONS_GROUP, POD, SANDBOX, SANDBOX_CLAIM, SANDBOX_WARM_POOL
from sandpool.api.resource import Object, SharedObject
from sandpool.api.small_requests import requests_within
from sandpool.api.views import PodView, SandboxView, adopted_by, controller_reference
from sandpool.api.views.sharing import PerPart
from sandpool.controllers.sandbox.ownership import precondition, refusal, tracking_labels
from sandpool.controllers.sandbox.volumes import pod_volumes
from sandpool.controllers.writer import Create, Delete, Patch
from sandpool.kube.patches import merge_diff, merge_patch

_MESSAGE_POLICY: Final = {"terminationMessagePolicy": "FallbackToLogsOnError"}


@dataclass(frozen=True, slots=True)
class PodPlan:
    """``repair`` corrects the pod-name annotation and is written first.

    Two results mean that a pod exists which the cache did not show, and that the caller must plan again with it as the
    tracked one: a Create answered by 409 AlreadyExists, and a successful read of the pod ``refresh``. The annotation
    names that pod but the cache does not have it, perhaps because its watch event is late. So the caller reads it from
    the API before it performs the plan; otherwise a sandbox whose pod was prepared just now would get a second one.
    """

    pod: PodView | None = None  # the pod that the status describes, unless a create returns another
    refresh: str = ""
    repair: Patch | None = None
    write: Create | Patch | Delete | None = None
    deferrable: bool = False  # whether the write may be delayed: it affects neither ownership nor existence
    count: int = 0  # number of owned pods if there is more than one, else 0
    error: str = ""


def owned_pods(sandbox: SandboxView, children: Iterable[PodView], tracked: PodView | None) -> list[PodView]:
    """``children`` are the pods that the cache shows as owned by the UID of the sandbox; ``tracked`` may be newer."""
    owned = [pod for pod in children if pod.controlled_by(sandbox)]
    if tracked is not None and tracked.uid not in [pod.uid for pod in owned] and tracked.controlled_by(sandbox):
        owned.append(tracked)
    return owned


def plan_pod(
    sandbox: SandboxView, children: Iterable[PodView], tracked: PodView | None, *, small_requests: bool = False
) -> PodPlan:
    """``tracked`` is the pod of the name ``sandbox.pod_name``; ``small_requests`` as in ``pod_spec``."""
    owned = owned_pods(sandbox, children, tracked)
    if len(owned) > 1:
        return PodPlan(repair=None if tracked is not None else _repair(sandbox, None), count=len(owned))
    pod = owned[0] if owned else tracked
    if sandbox.suspended:
        return _plan_suspended(sandbox, pod, tracked)
    if pod is None:
        refresh = sandbox.pod_name if sandbox.pod_name != sandbox.name else ""
        create = Create(POD, new_pod(sandbox, small_requests=small_requests))
        return PodPlan(refresh=refresh, repair=_repair(sandbox, None), write=create)
    if error := refusal("pod", pod, sandbox):
        # An unowned pod may still become adoptable, and the annotation is how it is found.
        return PodPlan(repair=_repair(sandbox, None) if pod.owner is not None else None, error=error)
    body = metadata_patch(pod, sandbox)
    return PodPlan(
        pod,
        repair=_repair(sandbox, pod),
        write=Patch(POD, pod.name, body) if body is not None else None,
        deferrable=pod.owner is not None,
    )


def new_pod(sandbox: SandboxView, *, small_requests: bool = False) -> Object:
    spec = pod_spec(sandbox, small_requests=small_requests)
    return {"apiVersion": POD.api_version, "kind": POD.kind, "metadata": new_metadata(sandbox), "spec": spec}


def _plan_suspended(sandbox: SandboxView, pod: PodView | None, tracked: PodView | None) -> PodPlan:
    if pod is None or not pod.controlled_by(sandbox):
        return PodPlan(pod, repair=_repair(sandbox, None))
    # While the pod exists, a correct annotation is kept.
    misleading = tracked is None or tracked.uid != pod.uid
    return PodPlan(
        pod,
        repair=_repair(sandbox, None) if misleading else None,
        write=None if pod.deleting else Delete(POD, pod.name, pod.uid),
    )


def _repair(sandbox: SandboxView, pod: PodView | None) -> Patch | None:
    """The patch that makes the annotation name ``pod``; without a pod, nothing but the name of the sandbox. It also
    removes the mark of a sleeping sandbox that a client has resumed without removing it: otherwise requests would
    resume the sandbox when a user suspends it later."""
    written = sandbox.annotations.get(labels.POD_NAME)
    name = pod.name if pod is not None else sandbox.name
    changes: dict[str, str | None] = {}
    if written != name and not (written is None and name == sandbox.name):
        changes[labels.POD_NAME] = name if name != sandbox.name else None
    if labels.ASLEEP_SINCE in sandbox.annotations and not sandbox.suspended:
        changes[labels.ASLEEP_SINCE] = None
    return Patch(SANDBOX, sandbox.name, {"metadata": {"annotations": changes}}) if changes else None


_LISTS: Final = frozenset({labels.PROPAGATED_LABELS, labels.PROPAGATED_ANNOTATIONS})


class _Author(NamedTuple):
    """The metadata that the author of the pod template may set, and the lists of its keys."""

    labels: dict[str, str]
    annotations: dict[str, str]
    listed_labels: str
    listed_annotations: str

    @classmethod
    def of(cls, labels: dict[str, str], annotations: dict[str, str]) -> _Author:
        return cls(labels, annotations, ",".join(sorted(labels)), ",".join(sorted(annotations)))


class _Wanted(NamedTuple):
    author: _Author
    own_labels: dict[str, str | None]  # None: must not be there


def new_metadata(sandbox: SandboxView) -> Object:
    """The metadata of the pod to be created."""
    author, own_labels = _wanted(sandbox)
    own = {key: value for key, value in own_labels.items() if value is not None}
    lists = {
        labels.PROPAGATED_LABELS: author.listed_labels,
        labels.PROPAGATED_ANNOTATIONS: author.listed_annotations,
    }
    annotations = {**author.annotations, **{key: value for key, value in lists.items() if value}}
    if _is_late_bound(sandbox):
        annotations[labels.LATE_BOUND] = "true"  # its clients wait for the variables
    metadata: Object = {
        "name": sandbox.name,
        "namespace": sandbox.namespace,
        "labels": {**author.labels, **own},
        "ownerReferences": [controller_reference(SANDBOX, sandbox)],
    }
    if annotations:
        metadata["annotations"] = annotations
    return metadata


def metadata_patch(pod: PodView, sandbox: SandboxView) -> Object | None:
    """The merge patch that updates the metadata of an existing pod; None if it is up to date. The same patch adopts an
    unowned pod."""
    author, own_labels = _wanted(sandbox)
    new_labels = _reconciled(
        pod.labels,
        pod.annotations.get(labels.PROPAGATED_LABELS, ""),
        author.labels,
        labels.is_reserved_label,
    )
    for key, value in own_labels.items():
        if value is not None:
            new_labels[key] = value
        elif key in new_labels:
            del new_labels[key]
    new_annotations = _reconciled(
        pod.annotations,
        pod.annotations.get(labels.PROPAGATED_ANNOTATIONS, ""),
        author.annotations,
        labels.is_reserved_annotation,
        keep=_LISTS,
    )
    _list(new_annotations, labels.PROPAGATED_LABELS, author.listed_labels)
    _list(new_annotations, labels.PROPAGATED_ANNOTATIONS, author.listed_annotations)
    if pod.owner is not None and new_labels == pod.labels and new_annotations == pod.annotations:
        return None

    before: Object = {"labels": pod.labels, "annotations": pod.annotations}
    after: Object = {"labels": new_labels, "annotations": new_annotations}
    if pod.owner is None:
        after["ownerReferences"] = adopted_by(pod, SANDBOX, sandbox)
    change = merge_diff(before, after)
    if change is None:
        return None
    return {"metadata": {**precondition(pod), **change}}


def shows(pod: PodView, write: Create | Patch | Delete, before: PodView | None) -> bool:
    """Whether a pod has exactly the labels and annotations that it has after ``write``; ``before`` is the pod that was
    patched. An API server may change what it is sent."""
    if isinstance(write, Create):
        wanted: SharedObject = write.object["metadata"]
    elif isinstance(write, Patch) and before is not None:
        wanted = merge_patch({"labels": before.labels, "annotations": before.annotations}, write.body["metadata"])
    else:
        return False
    return pod.labels == wanted["labels"] and pod.annotations == (wanted.get("annotations") or {})


def _wanted(sandbox: SandboxView) -> _Wanted:
    author = _author(sandbox.pod_template)
    if pooled := _pool_annotations(sandbox):
        author = _Author.of(author.labels, {**pooled, **author.annotations})
    own = {**tracking_labels(sandbox), **_extension_labels(sandbox), labels.CREATED_BY: _creator(sandbox)}
    return _Wanted(author, own)


def _allowed_metadata(pod_template: SharedObject) -> _Author:
    given = pod_template.get("metadata") or {}
    return _Author.of(
        {key: value for key, value in (given.get("labels") or {}).items() if not labels.is_reserved_label(key)},
        {
            key: value
            for key, value in (given.get("annotations") or {}).items()
            if not labels.is_reserved_annotation(key)
        },
    )


_author: Final = PerPart(_allowed_metadata, 1024)  # one template for all members of a pool


def _extension_labels(sandbox: SandboxView) -> dict[str, str | None]:
    """Labels that come from a pool or a claim. Policies select pods by them and pools count by them, so they are
    trusted only on a sandbox that a pool or claim owns: any client can write a label."""
    owner = sandbox.owner
    extended = owner is not None and owner.group == EXTENSIONS_GROUP
    pooled = owner is not None and owner.type is SANDBOX_WARM_POOL
    return {
        labels.WARM_POOL: (sandbox.labels.get(labels.WARM_POOL) or None) if pooled else None,
        labels.TEMPLATE_REF_HASH: (sandbox.labels.get(labels.TEMPLATE_REF_HASH) or None) if extended else None,
    }


def _is_late_bound(sandbox: SandboxView) -> bool:
    """Whether its claim hands its variables to each of its pods."""
    claimed = sandbox.owner is not None and sandbox.owner.type is SANDBOX_CLAIM
    return claimed and sandbox.annotations.get(labels.LATE_BOUND) == "true"


def _pool_annotations(sandbox: SandboxView) -> dict[str, str]:
    """Annotations that a pool sets on the pods of its members; the author of the template may override them. They are
    listed with those of the author and removed with the pool: a claimed sandbox must not be evicted."""
    evictable = sandbox.annotations.get(labels.SAFE_TO_EVICT)
    pooled = sandbox.owner is not None and sandbox.owner.type is SANDBOX_WARM_POOL
    return {labels.SAFE_TO_EVICT: evictable} if pooled and evictable else {}


def _creator(sandbox: SandboxView) -> str | None:
    creator = sandbox.labels.get(labels.CREATED_BY)
    return labels.normal_creator(creator) if creator else None


def _reconciled(
    current: Mapping[str, str],
    propagated: str,
    wanted: Mapping[str, str],
    reserved: Callable[[str], bool],
    keep: Collection[str] = (),
) -> dict[str, str]:
    """The current keys, without those that were copied from the template and are no longer in it, and with those that
    are. A reserved key in the list stems from a controller that let authors set it; it is removed unless in ``keep``.
    """
    result = dict(current)
    for key in propagated.split(",") if propagated else ():
        if key not in wanted and (key not in keep or not reserved(key)):
            result.pop(key, None)
    result.update(wanted)
    return result


def _list(annotations: dict[str, str], name: str, listed: str) -> None:
    """Record the keys. A missing list means an empty one and is not written; an existing list stays, empty."""
    if listed:
        annotations[name] = listed
    elif name in annotations:
        annotations[name] = ""


def pod_spec(sandbox: SandboxView, *, small_requests: bool = False) -> Object:
    """The spec of the pod to be created."""
    spec = (_with_small_requests if small_requests else _with_defaults)(sandbox.pod_template)
    if claimed := pod_volumes(sandbox):
        # Two volumes of one name are invalid; the volume claim template wins, since users add it on top.
        names = {volume["name"] for volume in claimed}
        kept = [volume for volume in spec.get("volumes") or () if volume.get("name") not in names]
        spec = {**spec, "volumes": [*kept, *claimed]}
    return spec


def _defaulted(pod_template: SharedObject, *, requests: bool) -> Object:
    spec = pod_template.get("spec") or {}
    lists = {key: spec[key] for key in ("initContainers", "containers") if isinstance(spec.get(key), list)}
    return {**spec, **{key: [_container(each, requests) for each in containers] for key, containers in lists.items()}}


def _container(container: Any, requests: bool) -> Any:
    """A container with its defaults. The API reports what is no container."""
    if not isinstance(container, dict):
        return container
    result = container if container.get("terminationMessagePolicy") else {**container, **_MESSAGE_POLICY}
    resources = container.get("resources") if requests else None
    if isinstance(resources, dict) and isinstance(limits := resources.get("limits"), dict):
        given = resources.get("requests") or {}
        if not isinstance(given, dict):
            return result
        if missing := {name: amount for name, amount in requests_within(limits).items() if name not in given}:
            result = {**result, "resources": {**resources, "requests": {**given, **missing}}}
    return result


_with_defaults: Final[PerPart[SharedObject, Object]] = PerPart(partial(_defaulted, requests=False), 1024)
_with_small_requests: Final[PerPart[SharedObject, Object]] = PerPart(partial(_defaulted, requests=True), 1024)
