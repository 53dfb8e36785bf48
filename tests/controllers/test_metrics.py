"""The number of sandboxes by state."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.api.conditions import READY
from sandpool.api.kinds import SANDBOX_CLAIM, SANDBOX_WARM_POOL
from sandpool.api.labels import CREATED_BY, LAUNCH_TYPE, TEMPLATE_REF
from sandpool.api.metrics import SANDBOXES
from sandpool.api.resource import Object
from sandpool.api.views import SandboxView
from sandpool.controllers.metrics import STATE_LOSSES, SandboxCounts, StateLossCounts
from sandpool.engine.cache.store import Cache
from sandpool.engine.metrics.registry import MetricsRegistry
from tests.support.sandbox_objects import sandbox, stored

CONDITION = {"lastTransitionTime": "2030-01-01T00:00:00Z", "message": "", "observedGeneration": 1}


def condition(status: str, reason: str = "") -> Object:
    return {"conditions": [{"type": READY, "status": status, "reason": reason, **CONDITION}]}


POOL = stored(SANDBOX_WARM_POOL, "pool")
CLAIM = stored(SANDBOX_CLAIM, "claim")
WARM = {
    "labels": {LAUNCH_TYPE: "warm", CREATED_BY: "controller"},
    "annotations": {TEMPLATE_REF: "python"},
}


def counts_of(cache: Cache[SandboxView]) -> SandboxCounts:
    counts = SandboxCounts()
    counts.subscribe(cache)
    return counts


async def shown(metrics: MetricsRegistry) -> list[str]:
    text, _ = await metrics.render()
    return [line for line in text.decode().splitlines() if line.startswith("agent_sandboxes{")]


def line(**labels: str) -> str:
    values = {
        "created_by": "unknown",
        "expired": "false",
        "launch_type": "cold",
        "namespace": "default",
        "owned_by": "None",
        "ready_condition": "false",
        "sandbox_template": "unknown",
    } | labels
    return "agent_sandboxes{" + ",".join(f'{name}="{values[name]}"' for name in sorted(values)) + "}"


@pytest.mark.parametrize(
    ("object", "expected"),
    [
        (sandbox(), line()),
        (sandbox(status=condition("True", "DependenciesReady")), line(ready_condition="true")),
        (sandbox(status=condition("False", "SandboxExpired")), line(expired="true")),
        (
            sandbox(owner=POOL, metadata=WARM),
            line(launch_type="warm", owned_by="SandboxWarmPool", sandbox_template="python", created_by="controller"),
        ),
        (sandbox(owner=CLAIM), line(owned_by="SandboxClaim")),
        (sandbox(metadata={"labels": {LAUNCH_TYPE: "odd", CREATED_BY: "another"}}), line()),
    ],
)
async def test_sandbox_is_counted_by_its_state(object: Object, expected: str) -> None:
    cache, metrics = Cache(SandboxView.from_object), MetricsRegistry()
    metrics.collect(SANDBOXES, counts_of(cache).samples)
    cache.observe(object)
    assert await shown(metrics) == [f"{expected} 1.0"]


async def test_counts_follow_changes_and_zero_counts_are_not_exported() -> None:
    cache, metrics = Cache(SandboxView.from_object), MetricsRegistry()
    cache.observe(sandbox("before"))
    metrics.collect(SANDBOXES, counts_of(cache).samples)
    cache.observe(sandbox("after"))
    assert await shown(metrics) == [f"{line()} 2.0"]
    ready = sandbox("after", metadata={"resourceVersion": "2"}, status=condition("True"))
    cache.observe(ready)
    assert await shown(metrics) == [f"{line()} 1.0", f"{line(ready_condition='true')} 1.0"]
    cache.observe_deletion(sandbox("before", metadata={"resourceVersion": "3"}))
    assert await shown(metrics) == [f"{line(ready_condition='true')} 1.0"]


STATES: tuple[dict[str, Any], ...] = (
    {},
    {"status": condition("True", "DependenciesReady")},
    {"status": condition("False", "SandboxExpired")},
    {"owner": POOL, "metadata": WARM},
    {"owner": CLAIM, "metadata": WARM, "status": condition("True")},
)


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from([None, *range(len(STATES))])), max_size=60))
def test_incremental_counts_equal_a_full_count(steps: list[tuple[int, int | None]]) -> None:
    cache = Cache(SandboxView.from_object)
    counted = counts_of(cache)
    for version, (number, state) in enumerate(steps, start=1):
        fields: Any = {**STATES[state or 0]}
        fields["metadata"] = {**fields.get("metadata", {}), "resourceVersion": str(version)}
        object = sandbox(f"box-{number}", **fields)
        if state is None:
            cache.observe_deletion(object)
        else:
            cache.observe(object)
    assert counted.samples() == counts_of(cache).samples()
    assert sum(counted.samples().values()) == len(cache)


async def test_state_losses_are_counted_once_by_reason() -> None:
    cache, losses, metrics = Cache(SandboxView.from_object), StateLossCounts(), MetricsRegistry()
    losses.subscribe(cache)
    metrics.collect(STATE_LOSSES, losses.samples)

    def lost(message: str) -> Object:
        condition = {"type": "StateLost", "status": "True", "reason": "OOMKilled", "message": message}
        return {"conditions": [{**condition, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}

    cache.observe(sandbox("known", status=lost("before this process")))
    cache.observe(sandbox("box"))
    for version, message in ((2, "first"), (3, "first"), (4, "second")):
        metadata = {"resourceVersion": str(version), "labels": {"version": str(version)}}
        cache.observe(sandbox("box", metadata=metadata, status=lost(message)))
    text = (await metrics.render(""))[0].decode()
    assert 'sandpool_sandbox_state_losses_total{namespace="default",reason="OOMKilled"} 2.0' in text
