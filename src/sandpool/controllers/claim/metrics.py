"""How long a claim took, told once in its life.

That a claim was ready once is noted on it (``claim-first-ready-at``), and what is noted is not told again: not when it
loses its readiness and regains it, not when its sandbox is resumed, not after a restart. A claim that was ready before
anybody noted it is noted as "unknown" and never told, because telling it twice is worse than not at all.
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
from sandpool.controllers.claim.annotations import precise
from sandpool.controllers.claim.ownership import launch_type
from sandpool.controllers.claim.status import ClaimStatus


@dataclass(frozen=True, slots=True)
class Sample:
    """Milliseconds for a histogram, an increase for a counter. ``labels`` are in the order of the metric."""

    metric: Metric
    labels: tuple[str, ...]
    value: float


@dataclass(frozen=True, slots=True)
class FirstReady:
    note: str = ""  # what to note on the claim; empty: nothing
    samples: tuple[Sample, ...] = ()


def first_ready(
    claim: ClaimView,
    status: ClaimStatus,
    sandbox: SandboxView | None,
    now: datetime,
    first_observed: datetime | None = None,
) -> FirstReady:
    """What to tell and to note of a claim whose ``status`` has just been written, or was so already.

    ``first_observed`` is when this process first saw it, for where that could not be noted on the claim.
    """
    if claim.annotations.get(labels.CLAIM_FIRST_READY_AT):
        return FirstReady()
    if claim.ready:
        return FirstReady(labels.FIRST_READY_UNKNOWN)
    if not status.ready:
        return FirstReady()
    return FirstReady(precise(now), tuple(_samples(claim, sandbox, now, first_observed)))


def creation(claim: ClaimView, sandbox: SandboxView | None, template: str, launch: str, pool: str) -> Sample:
    """That a claim was given a sandbox, the moment it was. ``sandbox`` is None if it was made for the claim."""
    creator = labels.normal_creator(claim.labels.get(labels.CREATED_BY, ""))
    condition = POD_READY if sandbox is not None and sandbox.ready else POD_NOT_READY
    known = template or _template(sandbox)
    return Sample(CLAIM_CREATIONS, (claim.namespace, known, launch, pool, condition, creator), 1)


def _samples(
    claim: ClaimView, sandbox: SandboxView | None, now: datetime, first_observed: datetime | None
) -> list[Sample]:
    noted = claim.annotations.get
    launch = UNKNOWN_LAUNCH_TYPE if sandbox is None else launch_type(claim, sandbox)
    kind = (launch, _template(sandbox))
    observed = parse_time(noted(labels.CONTROLLER_FIRST_OBSERVED_AT)) or first_observed
    samples = [
        _span(CLAIM_STARTUP_LATENCY, kind, parse_time(noted(labels.WEBHOOK_FIRST_OBSERVED_AT)), now),
        _span(CLAIM_CONTROLLER_STARTUP_LATENCY, kind, observed, now),
        _span(CLIENT_CLAIM_STARTUP_LATENCY, kind, parse_time(noted(labels.CLIENT_FIRST_REQUESTED_AT)), now),
    ]
    if sandbox is not None:
        ready = sandbox.status.condition(READY) or {}
        since = parse_time(ready.get("lastTransitionTime"))
        samples.append(_span(CREATION_LATENCY, (claim.namespace, *kind), sandbox.creation_timestamp, since))
    return [sample for sample in samples if sample is not None]


def _span(metric: Metric, of: tuple[str, ...], begin: datetime | None, end: datetime | None) -> Sample | None:
    """None if either end is not known, or they are in the wrong order because two clocks disagree."""
    if begin is None or end is None or end < begin:
        return None
    return Sample(metric, of, (end - begin).total_seconds() * 1000)


def _template(sandbox: SandboxView | None) -> str:
    name = "" if sandbox is None else sandbox.annotations.get(labels.TEMPLATE_REF, "")
    return name or UNKNOWN_CLAIM_TEMPLATE
