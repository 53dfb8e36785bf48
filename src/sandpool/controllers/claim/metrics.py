"""Metrics of a claim: how long it took to become Ready, recorded once in its life, and how it got its sandbox.

The annotation ``claim-first-ready-at`` marks a claim that has been Ready, and a marked claim is never measured again:
not when it loses and regains readiness, not when its sandbox is resumed, not after a restart. A claim that is Ready
without the annotation is marked "unknown" and not measured, because counting it twice is worse than missing it.

Every duration ends after the API has stored the Ready status, when clients can see it. The reconcile begins earlier, by
the writes that it makes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sandpool.api import labels
from sandpool.api.conditions import READY
from sandpool.api.metrics import (
    CLAIM_CONTROLLER_STARTUP_LATENCY,
    CLAIM_CREATIONS,
    CLAIM_STARTUP_LATENCY,
    CLIENT_CLAIM_STARTUP_LATENCY,
    CREATION_LATENCY,
    POD_NOT_READY,
    POD_READY,
    UNKNOWN_CLAIM_TEMPLATE,
    UNKNOWN_LAUNCH_TYPE,
    Metric,
)
from sandpool.api.views import ClaimView, SandboxView, parse_time
from sandpool.controllers.claim.ownership import launch_type
from sandpool.controllers.claim.status import ClaimStatus


@dataclass(frozen=True, slots=True)
class Sample:
    """Milliseconds for a histogram, an increase for a counter. ``labels`` are in the order of the metric."""

    metric: Metric
    labels: tuple[str, ...]
    value: float


def is_first_ready(claim: ClaimView, status: ClaimStatus) -> bool:
    """Whether ``status`` makes the claim Ready for the first time."""
    return status.ready and not claim.ready and not claim.annotations.get(labels.CLAIM_FIRST_READY_AT)


def startup_samples(
    claim: ClaimView, sandbox: SandboxView | None, ready_at: datetime, first_observed: datetime | None = None
) -> list[Sample]:
    """Latencies of a claim that became Ready for the first time.

    ``ready_at`` is the time after the API has stored the Ready status. ``first_observed`` is when this process first
    saw the claim, for a claim that is not annotated with it.
    """
    annotation = claim.annotations.get
    launch = UNKNOWN_LAUNCH_TYPE if sandbox is None else launch_type(claim, sandbox)
    kind = (launch, _template(sandbox))
    observed = parse_time(annotation(labels.CONTROLLER_FIRST_OBSERVED_AT)) or first_observed
    samples = [
        _span(CLAIM_STARTUP_LATENCY, kind, parse_time(annotation(labels.WEBHOOK_FIRST_OBSERVED_AT)), ready_at),
        _span(CLAIM_CONTROLLER_STARTUP_LATENCY, kind, observed, ready_at),
        _span(CLIENT_CLAIM_STARTUP_LATENCY, kind, parse_time(annotation(labels.CLIENT_FIRST_REQUESTED_AT)), ready_at),
    ]
    if sandbox is not None:
        ready = sandbox.status.condition(READY) or {}
        since = parse_time(ready.get("lastTransitionTime"))
        samples.append(_span(CREATION_LATENCY, (claim.namespace, *kind), sandbox.creation_timestamp, since))
    return [sample for sample in samples if sample is not None]


def creation(claim: ClaimView, sandbox: SandboxView | None, template: str, launch: str, pool: str) -> Sample:
    """Count a sandbox that a claim got. ``sandbox`` is the adopted one as it was, None if one was created."""
    creator = labels.normal_creator(claim.labels.get(labels.CREATED_BY, ""))
    condition = POD_READY if sandbox is not None and sandbox.ready else POD_NOT_READY
    known = template or _template(sandbox)
    return Sample(CLAIM_CREATIONS, (claim.namespace, known, launch, pool, condition, creator), 1)


def _span(metric: Metric, of: tuple[str, ...], begin: datetime | None, end: datetime | None) -> Sample | None:
    """None if an end is unknown, or if the order is wrong because two clocks disagree."""
    if begin is None or end is None or end < begin:
        return None
    return Sample(metric, of, (end - begin).total_seconds() * 1000)


def _template(sandbox: SandboxView | None) -> str:
    name = "" if sandbox is None else sandbox.annotations.get(labels.TEMPLATE_REF, "")
    return name or UNKNOWN_CLAIM_TEMPLATE
