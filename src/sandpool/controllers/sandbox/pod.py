"""The pod of a sandbox: which one it is, and whether to make, change or delete it.

A sandbox has one pod. It is the one whose controller reference bears the sandbox's UID, whatever else claims to be it:
anybody can write a label, and the pod-name annotation is a hint for readers that may be out of date. If two pods are
owned, choosing between them could destroy somebody's work, so nothing is touched.

Pods bear the sandbox's name unless one of another name was adopted, and readers take that for granted where there is no
annotation. So the annotation is written only where it says something else, and taken away where what it says is wrong.
One that repeats the sandbox's name, as members of pools are created with, is neither.

The spec of an existing pod is never changed, and a pod that has ended is not replaced.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sandpool.api import labels
from sandpool.api.kinds import POD, SANDBOX
from sandpool.api.resource import Object
from sandpool.api.views import PodView, SandboxView
from sandpool.controllers.sandbox.ownership import refusal
from sandpool.controllers.sandbox.pod_metadata import metadata_patch, new_metadata
from sandpool.controllers.sandbox.volumes import pod_volumes
from sandpool.controllers.writer import Create, Delete, Patch


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
