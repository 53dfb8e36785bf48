"""The defaults that manifests written for the Go controller rely on."""

from __future__ import annotations

from datetime import timedelta

from sandpool.controllers.options import ControllerOptions, ProcessOptions


def test_defaults_are_those_of_the_go_controller() -> None:
    options = ControllerOptions()
    assert (options.sandbox_workers, options.template_workers) == (100, 1)
    assert (options.cache_label_selectors, options.claim_events) == (False, True)
    assert options.sandbox.cluster_domain == "cluster.local"
    assert options.sandbox.write_behind == timedelta(0)
    assert options.claim.annotate_observability
    assert options.claim.label_domains == ("sandbox.users.io",)
    pool = options.warm_pool
    assert (pool.max_batch_size, pool.replenish_delay, pool.max_refill_rate) == (300, 0, 0)
    assert (pool.readiness_grace_period, pool.unschedulable_recheck_interval) == (300, 60)
    assert pool.enable_eviction


def test_worker_counts_differ_from_the_go_controller() -> None:
    """There: 50 for claims and 1 for pools."""
    assert ControllerOptions().claim.workers == 64
    assert ControllerOptions().warm_pool_workers == 4


def test_stopping_process_gives_reconciles_15_seconds() -> None:
    assert ProcessOptions().grace == 15
