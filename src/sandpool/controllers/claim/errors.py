"""Why a claim cannot be given its sandbox: what the Ready condition says about it, and when to try again."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from sandpool.api import conditions
from sandpool.api.events import go_duration
from sandpool.kube.errors import ApiError

#: What is not there yet is looked for again after this long, should no event tell of it.
MISSING_RETRY_SECONDS: Final = 60.0
#: A sandbox that exists although we do not see it will be seen after this long.
LAG_RETRY_SECONDS: Final = 0.2


class Retry(Enum):
    NEVER = auto()  # until something changes: the claim, its pool or the template
    BACKOFF = auto()  # as a failure, later and later
    AFTER = auto()  # after ``Problem.seconds``, and it is no failure


class Status(Enum):
    """What becomes of the sandbox in the claim's status."""

    KEEP = auto()  # the name stays: clearing it would make the next pass look for another sandbox
    CLEAR = auto()  # there is none
    UNTOUCHED = auto()  # not even the conditions change if a sandbox is named already


class ClaimError(Exception):
    """``message`` is what the condition says; made by the functions below, one per reason."""

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
    """Anything that has no reason of its own."""
    return ClaimError(conditions.RECONCILER_ERROR, conditions.error_message(detail), Retry.BACKOFF)


def pool_not_found(name: str) -> ClaimError:
    message = conditions.warm_pool_not_found_message(name)
    return ClaimError(conditions.WARM_POOL_NOT_FOUND, message, Retry.AFTER, seconds=MISSING_RETRY_SECONDS)


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
    """The sandbox was written by somebody else. The text is our own: the API's tells of versions nobody knows."""
    message = conditions.adoption_conflict_message(f"adoption write conflict: {detail}")
    return ClaimError(conditions.ADOPTION_CONFLICT, message, Retry.BACKOFF)


def create_pending() -> ClaimError:
    """The API says that the sandbox we want to create exists, and we have not seen it yet."""
    reason, message = conditions.SANDBOX_CREATE_PENDING
    return ClaimError(reason, message, Retry.AFTER, seconds=LAG_RETRY_SECONDS, status=Status.UNTOUCHED)


def expired_but_not_owned(sandbox: str, claim: str) -> ClaimError:
    reason, _ = conditions.CLAIM_EXPIRED
    detail = f'sandbox not owned by this claim: sandbox "{sandbox}" is not owned by claim "{claim}"'
    message = conditions.expired_but_not_owned_message(detail)
    return ClaimError(reason, message, Retry.NEVER, status=Status.CLEAR)


def is_refusal(error: ApiError) -> bool:
    """Whether the API has understood and will not have it, which people are to know. Else it just cannot, now."""
    return error.code < 500 and error.code != 429
