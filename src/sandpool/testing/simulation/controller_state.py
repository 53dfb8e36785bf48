"""Compare the controllers' in-memory state with the API once the world is quiescent."""

from __future__ import annotations

from collections.abc import Iterator

from sandpool.api.kinds import SANDBOX, SANDBOX_WARM_POOL
from sandpool.api.metrics import CLAIM_CONTROLLER_STARTUP_LATENCY, CLAIM_CREATIONS, Metric
from sandpool.api.resource import Key
from sandpool.controllers.manager import ControllerManager
from sandpool.testing.simulation.api import ObjectStore
from sandpool.testing.simulation.invariants import Violation
from sandpool.testing.simulation.object_facts import is_deleting, is_ready, owner_uid, uid_of


def check_controller_state(controllers: ControllerManager, store: ObjectStore) -> None:
    for check in (_caches, _assigner, _pools, _queues):
        for complaint in check(controllers, store):
            raise Violation("controller state matches the API at quiescence", complaint)


def _caches(controllers: ControllerManager, store: ObjectStore) -> Iterator[str]:
    for type, cache in controllers.caches:
        held = {entry.key: str(entry.revision) for entry in store.scan(type.group_resource)}
        known = {Key(view.namespace, view.name): cache.version(Key(view.namespace, view.name)) for view in cache}
        if held != known:
            wrong = sorted(set(held.items()) ^ set(known.items()))
            yield f"the cache of {type.plural} differs from the API: {wrong[:4]}"


def _assigner(controllers: ControllerManager, store: ObjectStore) -> Iterator[str]:
    assigner = controllers.claims.assigner
    if assigner._leases:
        yield f"leases not returned: {sorted(assigner._leases)}"
    if len(assigner._waiting):
        yield f"claims still waiting: {sorted(assigner._waiting._waiters)}"
    pools = {uid_of(entry.decode()) for entry in store.scan(SANDBOX_WARM_POOL.group_resource)}
    boxes = [entry.decode() for entry in store.scan(SANDBOX.group_resource)]
    free = {
        (box["metadata"]["namespace"], box["metadata"]["name"])
        for box in boxes
        if owner_uid(box) in pools and is_ready(box) and not is_deleting(box)
    }
    known = {
        sandbox
        for lists in assigner._ready._pools.values()
        for free_list in lists.values()
        for line in free_list._nodes.values()
        for sandbox in line
    }
    if free != known:
        yield f"the assigner has {sorted(known)}, but {sorted(free)} are free"


def _pools(controllers: ControllerManager, store: ObjectStore) -> Iterator[str]:
    outstanding = controllers.warm_pools.member_writer.expectations._outstanding
    if outstanding:
        yield f"expectations never fulfilled: {outstanding}"


def _queues(controllers: ControllerManager, store: ObjectStore) -> Iterator[str]:
    for controller in controllers._controllers:
        if len(controller.queue) or controller.queue.processing:
            yield f"{controller.name} still has keys in its work queue"


def ready_claims_observed(controllers: ControllerManager) -> int:
    """Count the claims whose startup latency the metrics recorded."""
    series = controllers.metrics.histogram(CLAIM_CONTROLLER_STARTUP_LATENCY).series
    return sum(sum(counts) for counts, _ in series.values())


def sandboxes_counted(controllers: ControllerManager, metric: Metric = CLAIM_CREATIONS) -> float:
    return sum(controllers.metrics.counter(metric).values.values())


def reconciles(controllers: ControllerManager) -> int:
    return sum(controller.reconciles for controller in controllers._controllers)
