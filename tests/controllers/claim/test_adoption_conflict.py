"""The outcome of an adoption that the API rejected."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandpool.api.views import ClaimView, SandboxView
from sandpool.controllers.claim.adoption import adoption_contended, is_adopted
from sandpool.controllers.claim.errors import ClaimError, Retry, Status
from tests.support.claim_objects import claim, pool_member, warm_pool
from tests.support.sandbox_objects import sandbox

CLAIM = ClaimView.from_object(claim())
MEMBER = SandboxView.from_object(pool_member(pool=warm_pool()))
TAIL = "; the next pass retries from a converged view"


def lost(fresh: SandboxView | None) -> str:
    with pytest.raises(ClaimError) as caught:
        is_adopted(CLAIM, "pool-abcde", fresh)
    error = caught.value
    assert (error.reason, error.retry, error.status) == ("AdoptionConflict", Retry.BACKOFF, Status.KEEP)
    return error.message


def test_e37_completed_adoption_needs_no_second_write() -> None:
    assert is_adopted(CLAIM, "pool-abcde", SandboxView.from_object(sandbox("pool-abcde", owner=claim())))


def test_e37_r3_pool_member_is_adopted_again() -> None:
    assert not is_adopted(CLAIM, "pool-abcde", replace(MEMBER, resource_version="2"))


def test_e38_deleted_sandbox_is_lost() -> None:
    assert lost(None) == f"adoption write conflict: sandbox pool-abcde deleted before adoption completed{TAIL}"


@pytest.mark.parametrize("owner", [claim("another"), None])
def test_sandbox_of_another_owner_is_lost(owner: dict[str, object] | None) -> None:
    fresh = SandboxView.from_object(sandbox("pool-abcde", owner=owner))
    assert lost(fresh) == (
        "adoption write conflict: sandbox pool-abcde is no longer pool-owned and not controlled by claim claim" + TAIL
    )


def test_sandbox_that_is_no_longer_adoptable_is_lost() -> None:
    other = SandboxView.from_object(pool_member(pool=warm_pool("other")))
    assert lost(other) == (
        "adoption write conflict: sandbox pool-abcde is no longer adoptable by claim claim: sandbox is of warm pool "
        f'"other", not "pool"{TAIL}'
    )


def test_e39_contended_sandbox_keeps_its_reference() -> None:
    error = adoption_contended(CLAIM, "pool-abcde")
    assert error.message == (
        "adoption write conflict: adopting sandbox pool-abcde for claim claim (conflicting concurrent write)" + TAIL
    )
    assert "object has been modified" not in error.message
    assert error.status is Status.KEEP
