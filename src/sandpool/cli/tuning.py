"""Tuning flags of the controllers, shared by every command that runs them."""

from __future__ import annotations

import inspect
import logging
import socket
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from sandpool.api.labels import MAX_CLAIMS, MAX_WARM_SANDBOXES
from sandpool.api.names import DEFAULT_CLUSTER_DOMAIN
from sandpool.cli.flags import duration, switch
from sandpool.cli.option_groups import SectionedCommand
from sandpool.controllers.claim.provisioning import parse_label_domains
from sandpool.controllers.options import (
    DEFAULT_LABEL_DOMAINS,
    ClaimOptions,
    ControllerOptions,
    SandboxOptions,
    WarmPoolOptions,
)
from sandpool.kube.labels import label_key_errors

F = TypeVar("F", bound=Callable[..., Any])

_log = logging.getLogger(__name__)

#: The value that lets the controllers choose a duration.
AUTOMATIC: Final = "auto"
#: Defaults for one machine that runs everything: refill waits for claims, because both need the same CPUs, and limits
#: reserve nothing.
ONE_MACHINE: Final = {"sandbox_warm_pool_replenish_delay": AUTOMATIC, "small_requests": True}

#: Where the installation mounts the optional ConfigMap.
LABEL_DOMAINS_FILE: Final = Path("/etc/sandbox-config/allowed-label-domains")

_MANY_WORKERS: Final = 1000
_POSITIVE: Final = click.IntRange(min=1)
_DEFAULT: Final = ControllerOptions()


def _count(name: str, default: int, help_text: str) -> Callable[[F], F]:
    return click.option(name, type=_POSITIVE, default=default, show_default=True, help=help_text)


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
        "Time between the last claim and the refill of a pool; auto grows with the pool up to 2s, applies to bursts of "
        "claims but not to a steady load, and shrinks before the pool runs empty.",
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
    click.option(
        "--max-claims-per-namespace",
        type=click.IntRange(min=0),
        help="Claims of a namespace that have a sandbox at a time; further ones wait. The annotation "
        f"{MAX_CLAIMS} of a Namespace has precedence. [default: no limit]",
    ),
    click.option(
        "--max-warm-sandboxes-per-namespace",
        type=click.IntRange(min=0),
        help="Warm sandboxes that all pools of a namespace keep together. The annotation "
        f"{MAX_WARM_SANDBOXES} of a Namespace has precedence. [default: no limit]",
    ),
    switch(
        "--enable-warm-pool-eviction", True, "Mark unclaimed sandboxes as safe to evict for the cluster autoscaler."
    ),
    duration("--sandbox-write-behind-window", "0", "Maximum delay of label and annotation updates of pods."),
    switch(
        "--small-requests",
        False,
        "Give containers that set limits and no requests small requests, and not their limits; on for sandpool up.",
    ),
    switch("--disable-claim-events", False, "Record no events for claims."),
    switch("--disable-claim-observability-annotations", False, "Write no time and trace annotations on claims."),
    click.option(
        "--allowed-label-domains-file",
        type=click.Path(path_type=Path),
        default=LABEL_DOMAINS_FILE,
        show_default=True,
        help="File with the domains of labels that claims may set on pods, separated by commas or line ends.",
    ),
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


_SECTIONS: Final = {
    "Leader election": (
        *("leader_election_namespace", "leader_elect_lease_duration", "leader_elect_renew_deadline"),
        "leader_elect_retry_period",
    ),
    "Metrics, logs and traces": (
        *("metrics_bind_address", "health_probe_bind_address", "log_format", "log_level", "enable_tracing", "pass_log"),
    ),
}


class TunedCommand(SectionedCommand):
    """A command that runs controllers. Its help lists the tuning flags last."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        tuning = tuple(inspect.signature(settings).parameters)
        super().__init__(*arguments, sections={**_SECTIONS, "Controller tuning": tuning}, **options)


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
    max_claims_per_namespace: int | None,
    max_warm_sandboxes_per_namespace: int | None,
    enable_warm_pool_eviction: bool,
    sandbox_write_behind_window: float,
    small_requests: bool,
    disable_claim_events: bool,
    disable_claim_observability_annotations: bool,
    cache_label_selectors: bool,
    allowed_label_domains_file: Path,
) -> ControllerOptions:
    """Return the controller options for the given flag values. Raises ClickException for a file that is unreadable."""
    return ControllerOptions(
        instance=socket.gethostname(),
        sandbox_workers=sandbox_concurrent_workers,
        template_workers=sandbox_template_concurrent_workers,
        warm_pool_workers=sandbox_warm_pool_concurrent_workers,
        cache_label_selectors=cache_label_selectors,
        claim_events=not disable_claim_events,
        max_claims_per_namespace=max_claims_per_namespace,
        max_warm_sandboxes_per_namespace=max_warm_sandboxes_per_namespace,
        sandbox=SandboxOptions(
            cluster_domain=cluster_domain,
            write_behind=timedelta(seconds=sandbox_write_behind_window),
            small_requests=small_requests,
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
            label_domains=_label_domains(allowed_label_domains_file),
            annotate_observability=not disable_claim_observability_annotations,
        ),
    )


def warn_of_many_workers(options: ControllerOptions) -> None:
    """Log a warning above the number of workers that the Go controller warns of."""
    if (workers := options.total_workers) > _MANY_WORKERS:
        _log.warning("%d concurrent workers in total: more than %d may overload the API server", workers, _MANY_WORKERS)


def _label_domains(file: Path) -> tuple[str, ...]:
    """Read the domains once, at start. A missing file means the default."""
    try:
        text = file.read_text(errors="replace")
    except FileNotFoundError:
        return DEFAULT_LABEL_DOMAINS
    except OSError as error:
        raise click.ClickException(f"cannot read --allowed-label-domains-file {file}: {error.strerror}") from None
    domains = parse_label_domains(text)
    for domain in domains:
        if label_key_errors(f"{domain}/key"):
            _log.warning("no label can be of the domain %r in %s: it is not a DNS name", domain, file)
    return domains
