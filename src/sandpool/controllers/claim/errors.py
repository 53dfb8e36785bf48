"""Reasons why a claim cannot be served: the Ready condition for each, and when to retry."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from sandpool.api import conditions
from sandpool.api.events import go_duration
from sandpool.kube.errors import ApiError

#: Retry for a missing object, in case its watch event is lost.
MISSING_RETRY_SECONDS: Final = 60.0
#: Retry for a sandbox that exists at the API and is not in the cache yet.
LAG_RETRY_SECONDS: Final = 0.2


class Retry(Enum):
    NEVER = auto()  # not before the claim, its pool or the template changes
    BACKOFF = auto()  # with exponential back-off, as a failure
    AFTER = auto()  # after ``ClaimError.seconds``; not counted as a failure


class Status(Enum):
    """The effect of an error on the sandbox's name in the claim's status."""

    KEEP = auto()  # without the name the next reconcile would look for another sandbox
    CLEAR = auto()  # the claim has no sandbox
    UNTOUCHED = auto()  # if the status names a sandbox, keep the conditions as well


class ClaimError(Exception):
    """An error with its condition. ``message`` is the condition's; the functions below make one per reason."""

    def __init__(
        self,
        reason: str,
        message: str,
        retry: Retry,
        *,
        seconds: float = 0.0,
        status: Status = Status.KEEP,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.retry = retry
        self.seconds = seconds
        self.status = status

    def __repr__(self) -> str:
        after = f" after {go_duration(self.seconds)}" if self.retry is Retry.AFTER else ""
        return f"<{self.reason}: {self.message} (retry: {self.retry.name}{after})>"


def failure(detail: str) -> ClaimError:
    """An error without a reason of its own."""
    return ClaimError(conditions.RECONCILER_ERROR, conditions.error_message(detail), Retry.BACKOFF)


def pool_not_found(name: str) -> ClaimError:
    message = conditions.warm_pool_not_found_message(name)
    return ClaimError(conditions.WARM_POOL_NOT_FOUND, message, Retry.AFTER, seconds=MISSING_RETRY_SECONDS)


def claim_limit_reached(namespace: str, limit: int) -> ClaimError:
    """Too many claims of the namespace have a sandbox. ``ClaimQuota`` enqueues the claim when its turn comes."""
    message = conditions.claim_limit_message(namespace, limit)
    return ClaimError(conditions.CLAIM_LIMIT_REACHED, message, Retry.NEVER)


def template_not_found(name: str) -> ClaimError:
    message = conditions.template_not_found_message(name)
    return ClaimError(conditions.TEMPLATE_NOT_FOUND, message, Retry.AFTER, seconds=MISSING_RETRY_SECONDS)


def invalid_metadata(detail: str) -> ClaimError:
    return ClaimError(conditions.INVALID_METADATA, conditions.invalid_metadata_message(detail), Retry.NEVER)


def environment_rejected(detail: str) -> ClaimError:
    return ClaimError(conditions.ENV_VARS_INJECTION_REJECTED, conditions.env_vars_rejected_message(detail), Retry.NEVER)


def volume_claim_templates_rejected(detail: str) -> ClaimError:
    return ClaimError(conditions.VOLUME_CLAIM_TEMPLATES_ERROR, detail, Retry.NEVER)


def adoption_conflict(detail: str) -> ClaimError:
    """Another writer changed the sandbox. The API's own text only names resource versions, so it is not repeated."""
    message = conditions.adoption_conflict_message(f"adoption write conflict: {detail}")
    return ClaimError(conditions.ADOPTION_CONFLICT, message, Retry.BACKOFF)


def environment_not_bound(detail: str) -> ClaimError:
    """A sandbox that the claim uses has been restarted and has not acknowledged the claim's variables again."""
    message = f"the sandbox has not acknowledged the variables of the claim: {detail}"
    return ClaimError(conditions.ENVIRONMENT_NOT_BOUND, message, Retry.BACKOFF)


def create_pending() -> ClaimError:
    """The sandbox to be created exists at the API, and the cache does not have it yet."""
    reason, message = conditions.SANDBOX_CREATE_PENDING
    return ClaimError(reason, message, Retry.AFTER, seconds=LAG_RETRY_SECONDS, status=Status.UNTOUCHED)


def expired_but_not_owned(sandbox: str, claim: str) -> ClaimError:
    reason, _ = conditions.CLAIM_EXPIRED
    detail = f'sandbox not owned by this claim: sandbox "{sandbox}" is not owned by claim "{claim}"'
    message = conditions.expired_but_not_owned_message(detail)
    return ClaimError(reason, message, Retry.NEVER, status=Status.CLEAR)


def is_refusal(error: ApiError) -> bool:
    """Whether the API rejected the request itself, which users must see, rather than failed to serve it now."""
    return error.code < 500 and error.code != 429
