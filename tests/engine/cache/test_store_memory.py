"""The memory of a cache: at most 6 KiB for a sandbox and its pod."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import dataclass
from sys import intern

import orjson
import pytest

from sandpool.api.resource import Object
from sandpool.engine.cache.store import Cache

COUNT = 1_000
LABELS = {
    "agents.x-k8s.io/warm-pool-sandbox": "a1b2c3d4",
    "agents.x-k8s.io/sandbox-template-ref-hash": "e5f6a7b8",
    "agents.x-k8s.io/launch-type": "warm",
    "agents.x-k8s.io/sandbox-template-hash": "0123456789abcdef",
    "agents.x-k8s.io/created-by": "controller",
}


@dataclass(frozen=True, slots=True)
class Condition:
    type: str
    status: str
    reason: str
    message: str
    since: str
    generation: int


@dataclass(frozen=True, slots=True)
class View:
    """About as much as a controller reads of a sandbox or a pod: no spec, no managed fields."""

    namespace: str
    name: str
    uid: str
    generation: int
    created: str
    deleted: str | None
    owner: str
    labels: tuple[tuple[str, str], ...]
    annotations: tuple[tuple[str, str], ...]
    node: str
    addresses: tuple[str, ...]
    phase: str
    conditions: tuple[Condition, ...]


def view(object: Object) -> View:
    """Repeated values are interned, which saves 3 of 6.6 KiB."""
    metadata, status = object["metadata"], object["status"]
    return View(
        intern(metadata["namespace"]),
        metadata["name"],
        metadata["uid"],
        metadata["generation"],
        intern(metadata["creationTimestamp"]),
        metadata.get("deletionTimestamp"),
        metadata["ownerReferences"][0]["uid"],
        tuple((intern(name), intern(value)) for name, value in metadata["labels"].items()),
        tuple((intern(name), value) for name, value in metadata["annotations"].items()),
        intern(status["nodeName"]),
        tuple(status["podIPs"]),
        intern(status["phase"]),
        tuple(condition(c) for c in status["conditions"]),
    )


def condition(object: Object) -> Condition:
    text = {name: intern(value) for name, value in object.items()}
    return Condition(text["type"], text["status"], text["reason"], text["message"], text["lastTransitionTime"], 1)


def as_received(number: int, kind: str) -> Object:
    """Decoded anew each time, so that nothing is shared which would not be in reality."""
    ready = {
        "status": "True",
        "reason": "DependenciesReady",
        "message": "Pod is Ready; Service Exists",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    metadata = {
        "namespace": "default",
        "name": f"pool-python-{number:05d}",
        "uid": f"{number:08d}-0000-4000-8000-{kind:0>12}",
        "resourceVersion": str(1_000_000 + number),
        "generation": 1,
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "ownerReferences": [{"uid": f"{number:08d}-1111-4111-8111-000000000000"}],
        "labels": LABELS,
        "annotations": {"agents.x-k8s.io/pod-name": f"pool-python-{number:05d}"},
        "managedFields": [{"manager": "x" * 2000}],
    }
    status = {
        "nodeName": f"node-{number % 50}",
        "podIPs": [f"10.0.{number // 250}.{number % 250}"],
        "phase": "Running",
        "conditions": [{"type": type, **ready} for type in ("PodScheduled", "Ready", "Suspended")],
    }
    object: Object = orjson.loads(
        orjson.dumps({"kind": kind, "metadata": metadata, "spec": {"containers": ["x" * 3000]}, "status": status})
    )
    return object


@pytest.mark.usefixtures("without_mutation_detector")
def test_sandbox_and_its_pod_take_at_most_6_kib() -> None:
    sandboxes, pods = Cache(view), Cache(view)
    for cache in (sandboxes, pods):
        cache.add_index("owner", lambda v: (v.owner,))
        cache.add_index("pool", lambda v: (v.labels[0][1],))
        cache.add_index("node", lambda v: (v.node,))
    sandboxes.observe(as_received(COUNT, "Sandbox"))
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(COUNT):
            sandboxes.observe(as_received(number, "Sandbox"))
            pods.observe(as_received(number, "Pod"))
        gc.collect()
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size / COUNT <= 6 * 1024
