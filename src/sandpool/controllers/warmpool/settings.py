"""What the operator of the controller decides for all pools."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """Times are in seconds. The defaults are those of the flags of the same names."""

    max_batch_size: int = 300  # sandboxes created, or deleted because they are too many, at a time
    # How long after the last claim a pool is refilled; None: the longer the larger it is, see ``hold``.
    replenish_delay: float | None = 0.0
    max_refill_rate: float = 0.0  # sandboxes created per second and pool; 0 is no limit
    readiness_grace_period: float = 300.0
    unschedulable_recheck_interval: float = 60.0
    enable_eviction: bool = True  # let the cluster autoscaler remove nodes with unclaimed sandboxes
    status_interval: float = 0.5  # between two writes of a pool's status
    expectations_recheck_interval: float = 30.0  # if what was asked for does not show up
