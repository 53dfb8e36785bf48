"""Tuning flags of the controllers, shared by every command that runs them."""

from __future__ import annotations

import inspect
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, TypeVar

import click

from sandpool.api.names import DEFAULT_CLUSTER_DOMAIN
from sandpool.cli.flags import duration, switch
from sandpool.controllers.options import ClaimOptions, ControllerOptions, SandboxOptions, WarmPoolOptions

F = TypeVar("F", bound=Callable[..., Any])

#: The value that lets the controllers choose a duration.
AUTOMATIC: Final = "auto"
#: Defaults for one machine that runs everything: refill waits for claims, because both need the same CPUs.
ONE_MACHINE: Final = {"sandbox_warm_pool_replenish_delay": AUTOMATIC}

_POSITIVE: Final = click.IntRange(min=1)
_DEFAULT: Final = ControllerOptions()


def _count(name: str, default: int, help: str) -> Callable[[F], F]:
    return click.option(name, type=_POSITIVE, default=default, show_default=True, help=help)


_FLAGS: Final = (
    click.option(
        "--cluster-domain", default=DEFAULT_CLUSTER_DOMAIN, show_default=True, help="DNS domain of the cluster."
    ),
    _count("--sandbox-concurrent-workers", _DEFAULT.sandbox_workers, "Concurrent reconciles of Sandboxes."),
    _count("--sandbox-claim-concurrent-workers", _DEFAULT.claim.workers, "Concurrent reconciles of SandboxClaims."),
    _count(
        "--sandbox-warm-pool-concurrent-workers",
        _DEFAULT.warm_pool_workers,
        "Concurrent reconciles of SandboxWarmPools.",
    ),
    _count(
        "--sandbox-template-concurrent-workers", _DEFAULT.template_workers, "Concurrent reconciles of SandboxTemplates."
    ),
    _count(
        "--sandbox-warm-pool-max-batch-size",
        _DEFAULT.warm_pool.max_batch_size,
        "Sandboxes that a pool creates, or deletes as surplus, per batch.",
    ),
    duration(
        "--sandbox-warm-pool-replenish-delay",
        "0",
        "Time between the last claim and the refill of a pool; auto grows with the pool up to 2s and shrinks before "
        "the pool runs empty.",
        automatic=AUTOMATIC,
    ),
    click.option(
        "--sandbox-warm-pool-max-refill-rate",
        type=click.FloatRange(min=0, max=1e9),
        default=_DEFAULT.warm_pool.max_refill_rate,
        show_default=True,
        help="Sandboxes created per second and pool; 0 means no limit.",
    ),
    duration(
        "--sandbox-warm-pool-readiness-grace-period",
        "5m",
        "Time after which a pool replaces a sandbox that is not ready.",
        positive=True,
    ),
    duration(
        "--sandbox-warm-pool-unschedulable-recheck-interval",
        "1m",
        "Time between checks of an unschedulable sandbox of a pool.",
        positive=True,
    ),
    switch(
        "--enable-warm-pool-eviction", True, "Mark unclaimed sandboxes as safe to evict for the cluster autoscaler."
    ),
    duration("--sandbox-write-behind-window", "0", "Maximum delay of label and annotation updates of pods."),
    switch("--disable-claim-events", False, "Record no events for claims."),
    switch("--disable-claim-observability-annotations", False, "Write no time and trace annotations on claims."),
    switch(
        "--cache-label-selectors",
        False,
        "Watch only pods and Services with the sandbox label; others cannot be adopted.",
    ),
)


def tuning_flags(command: F) -> F:
    """Add the flags that ``settings`` takes."""
    for flag in reversed(_FLAGS):
        command = flag(command)
    return command


class TunedCommand(click.Command):
    """A command whose help lists the tuning flags last, in a section of their own."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        tuning = set(inspect.signature(settings).parameters)
        shown = [(each.name in tuning, each.get_help_record(ctx)) for each in self.get_params(ctx)]
        for title, wanted in (("Options", False), ("Controller tuning", True)):
            with formatter.section(title):
                formatter.write_dl(
                    [record for is_tuning, record in shown if is_tuning is wanted and record is not None]
                )


def settings(
    *,
    cluster_domain: str,
    sandbox_concurrent_workers: int,
    sandbox_claim_concurrent_workers: int,
    sandbox_warm_pool_concurrent_workers: int,
    sandbox_template_concurrent_workers: int,
    sandbox_warm_pool_max_batch_size: int,
    sandbox_warm_pool_replenish_delay: float | None,
    sandbox_warm_pool_max_refill_rate: float,
    sandbox_warm_pool_readiness_grace_period: float,
    sandbox_warm_pool_unschedulable_recheck_interval: float,
    enable_warm_pool_eviction: bool,
    sandbox_write_behind_window: float,
    disable_claim_events: bool,
    disable_claim_observability_annotations: bool,
    cache_label_selectors: bool,
) -> ControllerOptions:
    """Return the controller options for the given flag values."""
    return ControllerOptions(
        instance=socket.gethostname(),
        sandbox_workers=sandbox_concurrent_workers,
        template_workers=sandbox_template_concurrent_workers,
        warm_pool_workers=sandbox_warm_pool_concurrent_workers,
        cache_label_selectors=cache_label_selectors,
        claim_events=not disable_claim_events,
        sandbox=SandboxOptions(
            cluster_domain=cluster_domain,
            write_behind=timedelta(seconds=sandbox_write_behind_window),
        ),
        warm_pool=WarmPoolOptions(
            max_batch_size=sandbox_warm_pool_max_batch_size,
            replenish_delay=sandbox_warm_pool_replenish_delay,
            max_refill_rate=sandbox_warm_pool_max_refill_rate,
            readiness_grace_period=sandbox_warm_pool_readiness_grace_period,
            unschedulable_recheck_interval=sandbox_warm_pool_unschedulable_recheck_interval,
            enable_eviction=enable_warm_pool_eviction,
        ),
        claim=ClaimOptions(
            workers=sandbox_claim_concurrent_workers,
            annotate_observability=not disable_claim_observability_annotations,
        ),
    )
