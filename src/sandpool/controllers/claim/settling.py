"""What a claim says once something was done about it, and what is noted and measured when it has said so."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sandpool.api.events import Happening, claim_expired
from sandpool.api.kinds import SANDBOX_CLAIM
from sandpool.api.labels import LAUNCH_WARM
from sandpool.api.views import ClaimView, SandboxView
from sandpool.controllers.claim import expiry
from sandpool.controllers.claim.annotations import notes
from sandpool.controllers.claim.decisions import Observed
from sandpool.controllers.claim.latency import Sample, first_ready
from sandpool.controllers.claim.lookup import launch_type
from sandpool.controllers.claim.problems import Problem, Retry
from sandpool.controllers.claim.status import ClaimStatus, marked_expired, next_status, status_patch
from sandpool.controllers.writer import Patch


@dataclass(frozen=True, slots=True)
class Settled:
    status: ClaimStatus
    patch: Patch | None  # of the status; None if it says so already
    requeue_after: float | None  # seconds; None: when something happens
    is_failure: bool = False  # to be tried again with back-off
    event: Happening | None = None


def settle(
    observed: Observed, sandbox: SandboxView | None, problem: Problem | None = None, *, expired: bool = False
) -> Settled:
    """``sandbox`` is what the claim has now, as the API answered; ``problem`` what was refused or went wrong.
    ``expired`` goes with ``Expire`` and ``Release``."""
    claim, now = observed.claim, observed.now
    if expired and not expiry.is_marked(claim.conditions):
        return _expire(observed, ClaimStatus.of(claim))
    status = next_status(claim, sandbox, problem, now, expired=expired)
    if not expired and expiry.has_expired(claim.lifecycle, status.conditions, now):
        # The pod has ended and was to be kept no longer.
        return _expire(observed, status)
    is_failure = problem is not None and problem.retry is Retry.BACKOFF
    return Settled(status, _status_write(claim, status), _requeue(claim, status, problem, now, expired), is_failure)


def _expire(observed: Observed, status: ClaimStatus) -> Settled:
    marked = marked_expired(observed.claim, status, observed.now)
    patch = _status_write(observed.claim, marked)
    return Settled(marked, patch, expiry.SECOND_PASS_SECONDS, event=claim_expired())


def _status_write(claim: ClaimView, status: ClaimStatus) -> Patch | None:
    body = status_patch(claim, status)
    return None if body is None else Patch(SANDBOX_CLAIM, claim.name, body, subresource="status")


def _requeue(
    claim: ClaimView, status: ClaimStatus, problem: Problem | None, now: datetime, expired: bool
) -> float | None:
    times = []
    deadline = expiry.deadline(claim.lifecycle, status.conditions)
    if deadline is not None and not expired:
        times.append((deadline - now).total_seconds())
    if problem is not None and problem.retry is Retry.AFTER:
        times.append(problem.seconds)
    return min(times, default=None)


@dataclass(frozen=True, slots=True)
class Conclusion:
    patch: Patch | None  # of the claim's metadata
    samples: tuple[Sample, ...]


def conclude(
    observed: Observed, status: ClaimStatus, sandbox: SandboxView | None, *, is_reference_stale: bool = False
) -> Conclusion:
    """What is left to do when the status has been written. Not if that was refused: then another pass knows better.

    Everything is noted at once when the claim is ready. Until then only a reference is taken away that leads nowhere.
    """
    claim = observed.claim
    first = first_ready(claim, status, sandbox, observed.now, observed.first_observed)
    if not (status.ready or first.note or is_reference_stale):
        return Conclusion(None, ())
    is_warm = sandbox is not None and launch_type(claim, sandbox) == LAUNCH_WARM
    body = notes(
        claim,
        first_observed=observed.first_observed if observed.is_observability_noted else None,
        trace_context=observed.trace_context if observed.is_observability_noted else "",
        adopted=sandbox.name if sandbox is not None and is_warm else "",
        is_reference_stale=is_reference_stale,
        first_ready=first.note,
    )
    return Conclusion(None if body is None else Patch(SANDBOX_CLAIM, claim.name, body), first.samples)
