"""Gauge of sandboxes by namespace, readiness, launch type, template, owner and creator, and counter of state losses.

The counts follow the changes of the cache. Counting on each scrape would block claims while the loop walks a hundred
thousand sandboxes.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from sandpool.api import labels
from sandpool.api.conditions import SANDBOX_EXPIRED, STATE_LOST, Condition
from sandpool.api.kinds import SANDBOX_CLAIM, SANDBOX_WARM_POOL
from sandpool.api.metrics import UNKNOWN_TEMPLATE, WITHOUT_OWNER, Metric
from sandpool.api.resource import Key
from sandpool.api.views import SandboxView
from sandpool.engine.cache.store import Cache, reads
from sandpool.engine.metrics.registry import Labels, Samples

_EXPIRED: Final = SANDBOX_EXPIRED[0]
STATE_LOSSES: Final = Metric(
    "sandpool_sandbox_state_losses_total",
    "counter",
    ("namespace", "reason"),
    "Sandboxes in use that lost their processes and files outside volumes.",
)


class SandboxCounts:
    """Counts of the sandboxes of a cache: samples of the metric ``SANDBOXES``."""

    def __init__(self) -> None:
        self._counts: Counter[Labels] = Counter()  # by the labels of the metric; zero counts are removed

    def subscribe(self, sandboxes: Cache[SandboxView]) -> None:
        """Count the sandboxes of a cache, now and with every change."""
        sandboxes.subscribe(self._changed, on_change_of=_labels)

    def samples(self) -> Samples:
        return dict(self._counts)

    def _changed(self, key: Key, old: SandboxView | None, new: SandboxView | None) -> None:
        if new is not None:
            self._counts[_labels(new)] += 1
        if old is not None:
            before = _labels(old)
            self._counts[before] -= 1
            if not self._counts[before]:
                del self._counts[before]


class StateLossCounts:
    """State losses of the sandboxes of a cache: samples of the metric ``STATE_LOSSES``."""

    def __init__(self) -> None:
        self._counts: Counter[Labels] = Counter()

    def subscribe(self, sandboxes: Cache[SandboxView]) -> None:
        """Count losses from now on."""
        sandboxes.subscribe(self._changed, on_change_of=_state_loss)

    def samples(self) -> Samples:
        return dict(self._counts)

    def _changed(self, key: Key, old: SandboxView | None, new: SandboxView | None) -> None:
        """Count a loss when its condition appears or changes, not when this process sees the sandbox first."""
        if old is None or new is None:
            return
        lost, known = (each.status.condition(STATE_LOST) for each in (new, old))
        if lost is not None and (known is None or known["message"] != lost["message"]):
            self._counts[key.namespace, lost["reason"]] += 1


@reads("labels", "annotations", "owner", "status")
def _labels(sandbox: SandboxView) -> Labels:
    """Values in the order of the labels of the metric."""
    launched = sandbox.labels.get(labels.LAUNCH_TYPE)
    return (
        sandbox.namespace,
        "true" if sandbox.status.ready else "false",
        "true" if sandbox.status.ready_reason == _EXPIRED else "false",
        labels.LAUNCH_WARM if launched == labels.LAUNCH_WARM else labels.LAUNCH_COLD,
        sandbox.annotations.get(labels.TEMPLATE_REF) or UNKNOWN_TEMPLATE,
        _owner(sandbox),
        labels.normal_creator(sandbox.labels.get(labels.CREATED_BY, "")),
    )


@reads("status")
def _state_loss(sandbox: SandboxView) -> Condition | None:
    return sandbox.status.condition(STATE_LOST)


def _owner(sandbox: SandboxView) -> str:
    for type in (SANDBOX_CLAIM, SANDBOX_WARM_POOL):
        if sandbox.owner is not None and sandbox.owner.type is type:
            return type.kind
    return WITHOUT_OWNER
