"""Enqueues a sandbox when it, or an object that belongs to it or has its name, changes.

The kubelet reports half a dozen changes of a pod until it is ready. Changes that affect a write, or a status that is
written at once, enqueue the sandbox at once. Changes that only the status of a slow launch shows enqueue it when that
status is due, so an ordinary launch never spends a reconcile on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sandpool.api.conditions import FALSE
from sandpool.api.kinds import SANDBOX
from sandpool.api.resource import Key, shared_key
from sandpool.api.views import PodView, SandboxView, ServiceView, View
from sandpool.controllers.informers import Caches, key_of
from sandpool.engine.cache.store import reads


def watch(caches: Caches, enqueue: Callable[[Key], object], enqueue_later: Callable[[Key], object]) -> None:
    """Subscribe to the caches. ``enqueue_later`` takes a sandbox whose status may wait until it is due."""

    def sandbox_changed(key: Key, old: SandboxView | None, new: SandboxView | None) -> None:
        enqueue(key)

    def pod_changed(key: Key, old: PodView | None, new: PodView | None) -> None:
        for sandbox in _sandboxes_of_pod(caches, key, old, new):
            enqueue(sandbox)

    def pod_progressed(key: Key, old: PodView | None, new: PodView | None) -> None:
        if old is not None and new is not None:
            for sandbox in _sandboxes_of_pod(caches, key, old, new):
                enqueue_later(sandbox)

    def service_changed(key: Key, old: ServiceView | None, new: ServiceView | None) -> None:
        if key in caches.sandboxes:
            enqueue(key)

    def volume_claim_changed(key: Key, old: View | None, new: View | None) -> None:
        for owner in dict.fromkeys((_owner(old), _owner(new))):
            if owner is not None and owner in caches.sandboxes:
                enqueue(owner)

    caches.sandboxes.subscribe(sandbox_changed, on_change_of=sandbox_fields)
    caches.pods.subscribe(pod_changed, on_change_of=urgent_pod_fields)
    caches.pods.subscribe(pod_progressed, on_change_of=deferred_pod_fields)
    caches.services.subscribe(service_changed, on_change_of=_service_fields)
    caches.volume_claims.subscribe(volume_claim_changed, on_change_of=_identity)


def _sandboxes_of_pod(caches: Caches, key: Key, old: PodView | None, new: PodView | None) -> Iterator[Key]:
    """The sandboxes that own or owned a pod, or whose pod it is by name."""
    naming = (key_of(sandbox) for sandbox in caches.sandboxes_naming(key.namespace, key.name))
    for sandbox in dict.fromkeys((_owner(old), _owner(new), key, *naming)):
        if sandbox is not None and sandbox in caches.sandboxes:
            yield sandbox


def _owner(view: View | None) -> Key | None:
    """The sandbox that controls an object."""
    if view is None or view.owner is None or view.owner.type is not SANDBOX:
        return None
    return shared_key(view.namespace, view.owner.name)


@reads("uid", "deletion_timestamp", "owner", exactly=True)
def _identity(view: View) -> tuple[object, ...]:
    return view.uid, view.deletion_timestamp, view.owner


@reads("uid", "deletion_timestamp", "owner", "labels", "cluster_ip", "selector", "ports", exactly=True)
def _service_fields(service: ServiceView) -> tuple[object, ...]:
    return (*_identity(service), service.labels, service.cluster_ip, service.selector, service.ports)


@reads("uid", "generation", "deletion_timestamp", "owner", "labels", "annotations", "status", exactly=True)
def sandbox_fields(sandbox: SandboxView) -> tuple[object, ...]:
    """Fields of a sandbox that a reconcile reads.

    The status is among them, although only this controller writes it. ``OwnWriteFilter`` drops the events of writes
    that this process knows. Any other change of the status was written by a process that has ended since, or by a
    request whose response was lost. The reconcile that it enqueues corrects the status if it is wrong.
    """
    return (
        sandbox.uid,
        sandbox.generation,
        sandbox.deletion_timestamp,
        sandbox.owner,
        sandbox.labels,
        sandbox.annotations,
        sandbox.status,
    )


@reads(
    "uid",
    "deletion_timestamp",
    "owner",
    "labels",
    "annotations",
    "phase",
    "last_end",
    "ips",
    "node_name",
    "ready",
    "scheduling",
)
def urgent_pod_fields(pod: PodView) -> tuple[object, ...]:
    """Fields of a pod that affect a write, or a status that is written at once."""
    scheduling = pod.scheduling
    serving = (pod.ips, pod.node_name) if pod.ready else None
    return (
        pod.uid,
        pod.deleting,
        pod.owner,
        pod.labels,
        pod.annotations,
        pod.phase if pod.ended else None,
        pod.last_end,
        serving,
        scheduling.reason if scheduling is not None and scheduling.status == FALSE else None,
    )


@reads("phase", "ips", "node_name", "scheduling", exactly=True)
def deferred_pod_fields(pod: PodView) -> tuple[object, ...]:
    """Fields of a pod that only the status of a slow launch shows."""
    return pod.phase, pod.ips, pod.node_name, pod.scheduling
