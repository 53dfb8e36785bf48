"""Has sandboxes looked at when they, or something that belongs to them or bears their name, have changed. Of what is
worth a look at all, see ``wake``.

Which changes wake a sandbox's reconcile.

The kubelet reports half a dozen changes of a pod until it is ready. Those that would change what is written at once
wake at once; those that only a slow launch shows are looked at when the status may be written anyway, so a launch that
is not slow never spends a pass on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sandpool.api.conditions import FALSE
from sandpool.api.kinds import SANDBOX
from sandpool.api.views import PodView, SandboxView, ServiceView, View
from sandpool.controllers.informers import Caches, key_of
from sandpool.engine.cache.store import Key


class SandboxWatches:
    """``wake`` is called with a sandbox that is to be looked at now, ``wake_later`` with one for which that is early
    enough when its status may be written anyway."""

    def __init__(self, caches: Caches, wake: Callable[[Key], object], wake_later: Callable[[Key], object]) -> None:
        self.caches = caches
        self.wake = wake
        self.wake_later = wake_later
        caches.sandboxes.subscribe(self._sandbox_changed, on_change_of=sandbox_fields)
        caches.pods.subscribe(self._pod_changed, on_change_of=urgent_pod_fields)
        caches.pods.subscribe(self._pod_moved_on, on_change_of=deferred_pod_fields)
        caches.services.subscribe(self._service_changed, on_change_of=_service_reads)
        caches.volume_claims.subscribe(self._volume_claim_changed, on_change_of=_identity)

    def _sandbox_changed(self, key: Key, old: SandboxView | None, new: SandboxView | None) -> None:
        self.wake(key)

    def _pod_changed(self, key: Key, old: PodView | None, new: PodView | None) -> None:
        for sandbox in self._concerned(key, old, new):
            self.wake(sandbox)

    def _pod_moved_on(self, key: Key, old: PodView | None, new: PodView | None) -> None:
        if old is not None and new is not None:
            for sandbox in self._concerned(key, old, new):
                self.wake_later(sandbox)

    def _service_changed(self, key: Key, old: ServiceView | None, new: ServiceView | None) -> None:
        if key in self.caches.sandboxes:
            self.wake(key)

    def _volume_claim_changed(self, key: Key, old: View | None, new: View | None) -> None:
        for owner in dict.fromkeys((_owner(old), _owner(new))):
            if owner is not None and owner in self.caches.sandboxes:
                self.wake(owner)

    def _concerned(self, key: Key, old: PodView | None, new: PodView | None) -> Iterator[Key]:
        """The sandboxes a pod belongs or belonged to, or would, by its name."""
        naming = (key_of(sandbox) for sandbox in self.caches.sandboxes_naming(key.namespace, key.name))
        for sandbox in dict.fromkeys((_owner(old), _owner(new), key, *naming)):
            if sandbox is not None and sandbox in self.caches.sandboxes:
                yield sandbox


def _owner(view: View | None) -> Key | None:
    """The sandbox that controls something."""
    if view is None or view.owner is None or not view.owner.is_a(SANDBOX):
        return None
    return Key(view.namespace, view.owner.name)


def _identity(view: View) -> tuple[object, ...]:
    return view.uid, view.deleting, view.owner


def _service_reads(service: ServiceView) -> tuple[object, ...]:
    return (*_identity(service), service.labels, service.cluster_ip, service.selector, service.ports)


def sandbox_fields(sandbox: SandboxView) -> tuple[object, ...]:
    """What a pass reads of the sandbox. Its status is ours, and the echo of our writes is recognised as such. But a
    status that comes at another time is one we do not know of: the answer was lost, or a predecessor wrote it with its
    last breath. Nobody else would ever put it right."""
    return (
        sandbox.uid,
        sandbox.generation,
        sandbox.deleting,
        sandbox.owner,
        sandbox.labels,
        sandbox.annotations,
        sandbox.status,
    )


def urgent_pod_fields(pod: PodView) -> tuple[object, ...]:
    """What of a pod decides about writes, or about a status that is written at once."""
    scheduling = pod.scheduling
    serving = (pod.ips, pod.node_name) if pod.ready else None
    return (
        pod.uid,
        pod.deleting,
        pod.owner,
        pod.labels,
        pod.annotations,
        pod.phase if pod.ended else None,
        serving,
        scheduling.reason if scheduling is not None and scheduling.status == FALSE else None,
    )


def deferred_pod_fields(pod: PodView) -> tuple[object, ...]:
    """What of a pod only the status of a slow launch shows."""
    return pod.phase, pod.ips, pod.node_name, pod.scheduling
