"""What a claim says once something was done about it, and what is noted and measured when it has said so."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sandpool.api.events import Happening, claim_expired
from sandpool.api.kinds import SANDBOX_CLAIM
from sandpool.api.labels import LAUNCH_WARM
from sandpool.api.views import ClaimView, SandboxView
from sandpool.controllers.claim import expiry
from sandpool.controllers.claim.annotations import annotation_patch
from sandpool.controllers.claim.decisions import Observed
from sandpool.controllers.claim.errors import ClaimError, Retry
from sandpool.controllers.claim.metrics import Sample, first_ready
from sandpool.controllers.claim.ownership import launch_type
from sandpool.controllers.claim.status import ClaimStatus, marked_expired, next_status, status_patch
from sandpool.controllers.writer import Patch


@dataclass(frozen=True, slots=True)
class StatusUpdate:
    status: ClaimStatus
    patch: Patch | None  # of the status; None if it says so already
    requeue_after: float | None  # seconds; None: when something happens
    is_failure: bool = False  # to be tried again with back-off
    event: Happening | None = None


def compute_status(
    observed: Observed, sandbox: SandboxView | None, error: ClaimError | None = None, *, expired: bool = False
) -> StatusUpdate:
    """``sandbox`` is what the claim has now, as the API answered; ``error`` what was refused or went wrong.
    ``expired`` goes with ``Expire`` and ``DeleteSandboxes``."""
    claim, now = observed.claim, observed.now
    if expired and not expiry.is_marked(claim.conditions):
        return _expire(observed, ClaimStatus.of(claim))
    status = next_status(claim, sandbox, error, now, expired=expired)
    if not expired and expiry.has_expired(claim.lifecycle, status.conditions, now):
        # The pod has ended and was to be kept no longer.
        return _expire(observed, status)
    is_failure = error is not None and error.retry is Retry.BACKOFF
    return StatusUpdate(status, _status_write(claim, status), _requeue(claim, status, error, now, expired), is_failure)


def _expire(observed: Observed, status: ClaimStatus) -> StatusUpdate:
    marked = marked_expired(observed.claim, status, observed.now)
    patch = _status_write(observed.claim, marked)
    return StatusUpdate(marked, patch, expiry.SECOND_PASS_SECONDS, event=claim_expired())


def _status_write(claim: ClaimView, status: ClaimStatus) -> Patch | None:
    body = status_patch(claim, status)
    return None if body is None else Patch(SANDBOX_CLAIM, claim.name, body, subresource="status")


def _requeue(
    claim: ClaimView, status: ClaimStatus, error: ClaimError | None, now: datetime, expired: bool
) -> float | None:
    times = []
    deadline = expiry.deadline(claim.lifecycle, status.conditions)
    if deadline is not None and not expired:
        times.append((deadline - now).total_seconds())
    if error is not None and error.retry is Retry.AFTER:
        times.append(error.seconds)
    return min(times, default=None)


@dataclass(frozen=True, slots=True)
class Completion:
    patch: Patch | None  # of the claim's metadata
    samples: tuple[Sample, ...]


def finish(
    observed: Observed, status: ClaimStatus, sandbox: SandboxView | None, *, is_reference_stale: bool = False
) -> Completion:
    """What is left to do when the status has been written. Not if that was refused: then another pass knows better.

    Everything is noted at once when the claim is ready. Until then only a reference is taken away that leads nowhere.
    """
    claim = observed.claim
    first = first_ready(claim, status, sandbox, observed.now, observed.first_observed)
    if not (status.ready or first.note or is_reference_stale):
        return Completion(None, ())
    is_warm = sandbox is not None and launch_type(claim, sandbox) == LAUNCH_WARM
    body = annotation_patch(
        claim,
        first_observed=observed.first_observed if observed.annotate_observability else None,
        trace_context=observed.trace_context if observed.annotate_observability else "",
        adopted=sandbox.name if sandbox is not None and is_warm else "",
        is_reference_stale=is_reference_stale,
        first_ready=first.note,
    )
    return Completion(None if body is None else Patch(SANDBOX_CLAIM, claim.name, body), first.samples)
