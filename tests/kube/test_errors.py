"""Status bodies and the errors they become."""

from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.kinds import POD
from sandpool.kube import errors
from sandpool.kube.errors import ApiError, PatchError, from_status


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        ({"reason": "NotFound", "code": 404}, 404, errors.NotFound),
        ({"reason": "AlreadyExists", "code": 409}, 409, errors.AlreadyExists),
        ({"reason": "Conflict", "code": 409}, 409, errors.Conflict),
        ({"reason": "Expired", "code": 410}, 410, errors.Expired),
        ({"reason": "Gone", "code": 410}, 410, errors.Gone),
        ({"reason": "Invalid", "code": 422}, 422, errors.Invalid),
        ({"reason": "BadRequest", "code": 400}, 400, errors.BadRequest),
        ({"reason": "SomethingNew", "code": 403}, 403, errors.Forbidden),
        ({"code": 500}, 500, errors.InternalError),
        ({"reason": "Unknown", "code": 499}, 499, ApiError),
        ({}, 503, errors.ServiceUnavailable),
    ],
)
def test_status_becomes_its_typed_error(status: dict[str, Any], code: int, expected: type[ApiError]) -> None:
    error = from_status({"kind": "Status", "message": "m", **status}, code)
    assert type(error) is expected
    assert (error.code, error.message) == (code, "m")


@pytest.mark.parametrize("body", [None, "<html>", [], {"kind": "Pod"}, 3])
def test_body_that_is_no_status_becomes_an_error(body: Any) -> None:
    error = from_status(body, 503)
    assert type(error) is errors.ServiceUnavailable
    assert error.code == 503


def test_status_is_unchanged_by_a_round_trip() -> None:
    error = errors.Conflict("m", details={"name": "a", "retryAfterSeconds": 2})
    again = from_status(error.status(), 409)
    assert again.status() == error.status()
    assert again.retry_after == 2.0


def test_not_found_status_has_empty_details() -> None:
    assert errors.NotFound("no such resource").status()["details"] == {}
    assert "details" not in errors.BadRequest("nonsense").status()


def test_malformed_details_are_ignored() -> None:
    assert from_status({"kind": "Status", "code": 429, "details": ["x"]}, 429).retry_after is None
    assert from_status({"kind": "Status", "code": 429, "details": {"retryAfterSeconds": "x"}}, 429).retry_after is None


def test_rejected_patch_is_a_typed_error() -> None:
    arrived = from_status(PatchError("testing value /a failed: test failed").status(), 422)
    assert type(arrived) is errors.Invalid
    assert arrived.details["causes"][0]["message"] == "testing value /a failed: test failed"


def test_terminating_namespace_is_recognised_by_the_cause_and_not_by_the_message() -> None:
    refusal = errors.namespace_terminating(POD, "late", "team")
    arrived = from_status(refusal.status() | {"message": "no"}, 403)
    assert errors.is_namespace_terminating(arrived)
    assert not errors.is_namespace_terminating(errors.Forbidden(refusal.message))
    assert not errors.is_namespace_terminating(errors.Forbidden("no", details={"causes": [{"reason": "Other"}, "x"]}))
    assert not errors.is_namespace_terminating(errors.Forbidden("no", details={"causes": "NamespaceTerminating"}))
    assert not errors.is_namespace_terminating(TimeoutError(refusal.message))
