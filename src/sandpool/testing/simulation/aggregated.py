"""Our kinds as in a cluster with an aggregated API server: in the controllers' process, all other kinds elsewhere.

Two stores with revisions of their own, and one client that reaches both. Requests of the controllers for our kinds stay
in their process: they are never slow, refused or lost, and end with it. All others cross the simulated network to
kube-apiserver. A killed process takes its API along. The batch that its store was committing is on the volume or lost;
accepted writes behind it are lost. Until the next process serves, clients of our kinds wait, as if they repeated a
request that kube-apiserver answers with 503.

Two collectors run: the partial one of ``KindsServer``, and one in the place of kube-controller-manager's, which sees
both APIs, some time late.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextvars import Context
from pathlib import Path
from random import Random
from typing import Any, Final

from sandpool.api.kinds import NAMESPACE, POD, SANDPOOL
from sandpool.api.resource import Key, Object
from sandpool.engine.clock import Clock
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.group_router import GroupRouter
from sandpool.kube.transport import Request, Transport, WatchEvent
from sandpool.server.aggregated.kinds_server import GROUPS, KindsServer
from sandpool.server.api_server import ApiServer
from sandpool.server.controllers.garbage_collector import GarbageCollector, OwnedObject, Propagation
from sandpool.server.controllers.owner_graph import OwnerKind, Ref
from sandpool.server.kinds.metadata import FOREGROUND
from sandpool.server.store.entry import Change, Entry
from sandpool.server.store.store import Store
from sandpool.testing.simulation.api import (
    AttributedStore,
    WriteObserver,
    share_compiled_resources,
    start_server,
)
from sandpool.testing.simulation.event_loop import Process
from sandpool.testing.simulation.invariants import Violation
from sandpool.testing.simulation.journal import VolumeJournal
from sandpool.testing.simulation.network import ControllerTransport, LocalTransport, SimulatedTransport
from sandpool.testing.simulation.network_faults import NetworkFaults
from sandpool.testing.simulation.trace import Trace

#: Seconds for which a pod must have existed to count for ``DeletionOrder``: the collector may not know younger ones.
_KNOWN_PODS: Final = 30.0
# Seconds until a new process serves.
_START: Final = 0.01


class AggregatedApi:
    """kube-apiserver, and the API of our kinds in whichever process of the controllers lives."""

    def __init__(self, kube: ApiServer, kube_store: AttributedStore, kinds: Kinds, collector: ClusterCollector) -> None:
        self.kube = kube
        self.kinds = kinds
        self.collector = collector
        self.store = BothStores(kube_store, kinds)

    @classmethod
    async def start(cls, clock: Clock, rng: Random, trace: Trace, delay: Callable[[], float]) -> AggregatedApi:
        lag = rng.choice((0.0, 0.05, 2.0))
        objects = ClusterObjects()
        collector = ClusterCollector(objects, clock, lambda: lag * rng.random())

        def make(data_dir: Path, **options: Any) -> ApiServer:
            return _KubeApi(data_dir, collector, **options)

        kube, store = await start_server(clock, rng, delay, make)

        def find_namespace(name: str) -> Object | None:
            entry = store.get(NAMESPACE.group_resource, Key("", name))
            return entry.decode() if entry is not None else None

        api = cls(kube, store, Kinds(find_namespace, clock, rng, delay), collector)
        api.kinds.add_observer(collector.observe_write)
        network = SimulatedTransport(api.transport("collector"), NetworkFaults(rng, lag=lag), trace, "collector")
        objects.client = Client(network)
        return api

    def transport(self, name: str) -> Transport:
        return GroupRouter(GROUPS, _ForwardedTransport(self.kinds, name), self.kube.client(name=name).transport)

    def controllers(self, process: Process, faults: NetworkFaults, trace: Trace) -> ControllerTransport:
        """The transport of a new process, which ``serve`` makes the server of our kinds."""
        name = "controllers"
        other = SimulatedTransport(self.kube.client(name=name).transport, faults, trace, name)
        own = LocalTransport(self.kinds.install(process).transport(name), trace, name, self.kinds.delay)
        return _TwoSides(own, other)

    async def serve(self) -> None:
        await self.kinds.serve()

    def crash(self) -> None:
        self.kinds.crash()

    def observe_violations(self, time: Callable[[], float], on_violation: Callable[[Violation], None]) -> None:
        """Check the invariants that two APIs add."""
        self.store.add_write_observer(DeletionOrder(time, on_violation).observe_write)

    def check(self) -> None:
        """Raise ``Violation`` if an object is in the wrong API."""
        for type in SANDPOOL:
            if self.store.kube.count(type.group_resource):
                raise Violation("our kinds are not kube-apiserver's", f"it has {type.plural}")
        for resource in self.kinds.store.resources():
            if not _is_ours(resource) and self.kinds.store.count(resource):
                raise Violation("our API has our kinds alone", f"it has {resource}")


class Kinds:
    """The volume of our API and the server on it: at most one, of the process that lives."""

    def __init__(
        self,
        find_namespace: Callable[[str], Object | None],
        clock: Clock,
        rng: Random,
        delay: Callable[[], float],
    ) -> None:
        self.find_namespace = find_namespace
        self.clock = clock
        self.rng = rng
        self.delay = delay
        self.serving = asyncio.Event()
        self._observers: list[WriteObserver] = []
        self._observed: dict[tuple[str, Key], int] = {}  # the revisions of all objects, as observers know them
        self._journal = VolumeJournal(delay)
        self._open()

    def _open(self) -> None:
        self.store = AttributedStore(self._journal, {})
        self.store.add_write_observer(self._observe_write)

    def add_observer(self, observer: WriteObserver) -> None:
        """Call ``observer`` with every change that any of the servers commits from now on."""
        self._observers.append(observer)

    def _observe_write(self, resource: str, change: Change, writer: str) -> None:
        place = resource, change.entry.key
        if change.type == "DELETED":
            self._observed.pop(place, None)
        else:
            self._observed[place] = change.revision
        for observer in self._observers:
            observer(resource, change, writer)

    def install(self, process: Process) -> KindsServer:
        """Make the server of a new process."""
        self.process = process
        self.server = KindsServer(self.store, self.find_namespace, self.clock, self.rng)
        share_compiled_resources(self.server.resources)
        return self.server

    async def serve(self) -> None:
        """Serve what is on the volume. Raises ``Violation`` if that is not all that was ever visible."""
        await self.clock.sleep(_START)  # meanwhile, observers learn of the batch at the crash
        found = {
            (name, entry.key): entry.revision for name in self.store.resources() for entry in self.store.scan(name)
        }
        if found != self._observed:
            wrong = sorted(found.items() ^ self._observed.items())
            raise Violation("what is visible is on the volume", f"after a crash {wrong[:4]} differ")
        await self.server.start()
        self.gone = asyncio.get_running_loop().create_future()
        self.serving.set()

    def crash(self) -> None:
        """End the server as its process ends, and open its volume as the next process will find it."""
        if self.serving.is_set():
            self.serving.clear()
            self.gone.set_result(None)
        self._journal = self._journal.crash(is_committed=self.rng.random() < 0.5)
        self._open()


class BothStores:
    """The objects of both APIs."""

    def __init__(self, kube: AttributedStore, kinds: Kinds) -> None:
        self.kube = kube
        self._kinds = kinds

    def scan(self, resource: str, namespace: str | None = None) -> Iterator[Entry]:
        return self._of(resource).scan(resource, namespace)

    def count(self, resource: str, namespace: str | None = None) -> int:
        return self._of(resource).count(resource, namespace)

    def add_write_observer(self, observer: WriteObserver) -> None:
        self.kube.add_write_observer(observer)
        self._kinds.add_observer(observer)

    def _of(self, resource: str) -> Store:
        return self._kinds.store if _is_ours(resource) else self.kube


class _ForwardedTransport:
    """Requests for our kinds that kube-apiserver passes on. While our API is away, they wait for the next process."""

    stores_metadata_with_status = False

    def __init__(self, kinds: Kinds, name: str) -> None:
        self._kinds = kinds
        self._name = name

    async def request(self, request: Request) -> Any:
        kinds = self._kinds
        while True:
            await kinds.serving.wait()
            gone = kinds.gone
            answer = kinds.process.run(kinds.server.transport(self._name).request(request))
            await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()

    async def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        await self._kinds.serving.wait()
        async for event in self._kinds.server.transport(self._name).stream(request):
            yield event

    async def close(self) -> None:
        """Nothing is open."""


class _TwoSides(GroupRouter):
    """The transport of one process of the controllers."""

    own: LocalTransport
    other: SimulatedTransport

    def __init__(self, own: LocalTransport, other: SimulatedTransport) -> None:
        super().__init__(GROUPS, own, other)

    @property
    def writes(self) -> int:
        return self.own.writes + self.other.writes

    @property
    def under_way(self) -> Iterable[Request]:
        """Writes that may be executed after the end of the process: to kube-apiserver alone."""
        return self.other.under_way

    def watch_writes(
        self,
        before: Callable[[str, Request], None],
        sent: Callable[[Request], None],
        after: Callable[[str, Request], None],
    ) -> None:
        self.own.watch_writes(before, sent, after)
        self.other.watch_writes(before, sent, after)

    def disconnect(self) -> None:
        self.own.disconnect()
        self.other.disconnect()


# --- the collector of the cluster -------------------------------------------------------------------------------------


class ClusterObjects:
    """What the collector of the cluster has observed, and its client. ``client`` is set once there is an API."""

    client: Client

    def __init__(self) -> None:
        self.seen: dict[Ref, Object] = {}
        self.kube: ApiServer

    def owned_objects(self) -> Iterator[OwnedObject]:
        return self.kube.objects.owned_objects()

    def get(self, ref: Ref) -> Object | None:
        return self.seen.get(ref)

    def kind(self, api_version: str, kind: str) -> OwnerKind | None:
        return self.kube.objects.kind(api_version, kind)  # kube-apiserver's discovery lists our kinds, too

    async def delete(self, ref: Ref, *, uid: str, resource_version: str, propagation: Propagation) -> None:
        type = self.kube.resources.stored()[ref.resource].type
        await self.client.delete(
            type,
            ref.name,
            ref.namespace or None,
            propagation_policy=propagation,
            uid=uid,
            resource_version=resource_version,
        )

    async def patch(self, ref: Ref, merge_patch: Object) -> None:
        type = self.kube.resources.stored()[ref.resource].type
        await self.client.patch(type, ref.name, MergePatch(merge_patch), ref.namespace or None)


class ClusterCollector(GarbageCollector):
    """The collector of kube-controller-manager. Changes reach it in the order of their commits, after ``lag()``
    seconds; its writes have what it has seen as precondition."""

    objects: ClusterObjects

    def __init__(self, objects: ClusterObjects, clock: Clock, lag: Callable[[], float]) -> None:
        super().__init__(objects, clock, Random(0))
        self._lag = lag
        self._unseen: deque[tuple[str, Ref, Object]] = deque()

    def start(self) -> None:
        store = self.objects.kube.store
        for resource in store.resources():
            self.objects.seen.update((Ref(resource, *entry.key), entry.decode()) for entry in store.scan(resource))
        super().start()

    def observe_write(self, resource: str, change: Change, writer: str) -> None:
        self.notice(change.type, Ref(resource, *change.entry.key), change.object)

    def notice(self, type: str, ref: Ref, obj: Object, before: Object | None = None) -> None:
        if not self._unseen:
            asyncio.get_running_loop().call_later(self._lag(), self._catch_up, context=Context())
        self._unseen.append((type, ref, obj))

    def _catch_up(self) -> None:
        while self._unseen:
            type, ref, obj = self._unseen.popleft()
            if type == "DELETED":
                self.objects.seen.pop(ref, None)
            else:
                self.objects.seen[ref] = obj
            super().notice(type, ref, obj)


class _KubeApi(ApiServer):
    """The embedded API in the place of kube-apiserver, with a collector that sees both APIs."""

    def __init__(self, data_dir: Path, collector: ClusterCollector, **options: Any) -> None:
        super().__init__(data_dir, **options)
        self._cluster_collector = collector
        collector.objects.kube = self

    def _assemble(self, store: Store) -> None:
        super()._assemble(store)
        self.collector = self._cluster_collector
        self.controllers["garbage collector"] = self.collector


class DeletionOrder:
    """Invariant: **Foreground deletion waits.** An object of ours in foreground deletion is there until the pods that
    block its deletion are gone. Only the collector of the cluster can know that."""

    def __init__(self, time: Callable[[], float], on_violation: Callable[[Violation], None]) -> None:
        self.time = time
        self.on_violation = on_violation
        self._pods: dict[str, dict[str, tuple[str, float]]] = {}  # by UID of the blocked owner: pods, since when

    def observe_write(self, resource: str, change: Change, writer: str) -> None:
        if resource == POD.group_resource:
            self._pod(change)
        elif _is_ours(resource) and change.type == "DELETED" and change.previous is not None:
            before = change.previous.decode()["metadata"]
            blocked = FOREGROUND in (before.get("finalizers") or ()) and "deletionTimestamp" in before
            known = self._pods.get(before["uid"], {}).values()
            left = sorted(name for name, since in known if since < self.time() - _KNOWN_PODS)
            if blocked and left:
                details = f"{resource} {before['name']} is removed by {writer or 'the server'} before {left}"
                self.on_violation(Violation("foreground deletion waits", details))

    def _pod(self, change: Change) -> None:
        metadata = change.object["metadata"]
        for owner in metadata.get("ownerReferences") or ():
            pods = self._pods.setdefault(owner["uid"], {})
            if change.type == "DELETED":
                pods.pop(metadata["uid"], None)
            elif owner.get("blockOwnerDeletion"):
                pods.setdefault(metadata["uid"], (metadata["name"], self.time()))


def _is_ours(resource: str) -> bool:
    return resource.partition(".")[2] in GROUPS
