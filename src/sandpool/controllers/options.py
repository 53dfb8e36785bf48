"""Options of the controllers and of the process that runs them.

The command line sets them, and so do tests. Defaults are those of the flags of the same names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from sandpool.api.names import DEFAULT_CLUSTER_DOMAIN
from sandpool.engine.ratelimit import RateLimiter

#: Claims may pass on labels and annotations of these domains.
DEFAULT_LABEL_DOMAINS: Final = ("sandbox.users.io",)

#: How long a state that needs no action must last before the Sandbox controller writes it.
STATUS_DELAY: Final = timedelta(seconds=10)


#: How long a claim must live before a write of its own records when it became Ready. Many claims are deleted earlier.
FIRST_READY_DELAY: Final = 10.0


@dataclass(frozen=True, slots=True)
class SandboxOptions:
    """Options of the Sandbox controller."""

    cluster_domain: str = DEFAULT_CLUSTER_DOMAIN
    write_behind: timedelta = timedelta(0)  # longest delay of a write of a pod's metadata
    status_delay: timedelta = STATUS_DELAY
    small_requests: bool = False  # for containers that set limits and no requests; Kubernetes takes the limits


@dataclass(frozen=True, slots=True)
class WarmPoolOptions:
    """Options of the SandboxWarmPool controller, the same for all pools. Times are in seconds."""

    max_batch_size: int = 300  # most sandboxes that one reconcile creates, or deletes because there are too many
    # Delay between the last claim and the refill. None derives it from the size of the pool, see ``RefillDelay``.
    replenish_delay: float | None = 0.0
    max_refill_rate: float = 0.0  # sandboxes created per second and pool; 0 is no limit
    readiness_grace_period: float = 300.0
    unschedulable_recheck_interval: float = 60.0
    enable_eviction: bool = True  # let the cluster autoscaler remove nodes with unclaimed sandboxes
    status_interval: float = 0.5  # shortest time between two writes of a pool's status
    expectations_recheck_interval: float = 30.0  # next reconcile while expected creations or deletions are unseen


@dataclass(frozen=True, slots=True)
class ClaimOptions:
    """Options of the SandboxClaim controller."""

    workers: int = 64  # concurrent reconciles of claims
    annotation_workers: int = 4  # concurrent writes of annotations on claims that are served
    # Seconds between Ready and the annotation with its time, where that is a write of its own.
    first_ready_delay: float = FIRST_READY_DELAY
    label_domains: tuple[str, ...] = DEFAULT_LABEL_DOMAINS
    binding_timeout: float = 5.0  # seconds within which a warm sandbox must acknowledge the variables of a claim
    annotate_observability: bool = True  # annotate a claim with the time it was first seen and with its trace


@dataclass(frozen=True, slots=True)
class ControllerOptions:
    """Options of all controllers together. Workers are concurrent reconciles per controller."""

    namespace: str | None = None  # None: all
    instance: str = "sandpool"  # tells replicas apart in events; usually the host's name
    sandbox_workers: int = 100
    template_workers: int = 1
    warm_pool_workers: int = 4
    cache_label_selectors: bool = False  # cache only the pods and Services that carry a sandbox's label
    claim_events: bool = True  # write Events about claims
    # Limits of namespaces without an annotation; None: no limit. See ``controllers.quota``.
    max_claims_per_namespace: int | None = None
    max_warm_sandboxes_per_namespace: int | None = None
    sandbox: SandboxOptions = field(default_factory=SandboxOptions)
    warm_pool: WarmPoolOptions = field(default_factory=WarmPoolOptions)
    claim: ClaimOptions = field(default_factory=ClaimOptions)

    @property
    def total_workers(self) -> int:
        """Concurrent reconciles of all controllers; the writers of annotations are not counted."""
        return self.sandbox_workers + self.claim.workers + self.warm_pool_workers + self.template_workers


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """Options of the process around the controllers. ``health.parse_address`` reads the addresses; ``0`` is none."""

    metrics_address: str = "0"
    health_address: str = "0"
    rate: RateLimiter | None = None  # limit on requests to the API; None: no limit
    grace: float = 15.0  # seconds that a stopping process gives running reconciles to finish
