from __future__ import annotations

from typing import Any

import pytest

from sandpool.kube.errors import BadRequest, Invalid
from sandpool.server.request.options import DeleteOptions, delete_options, list_options, watch_options, write_options


def test_write_options_are_read_from_the_query() -> None:
    query = {"dryRun": "All", "fieldValidation": "Strict", "force": "true"}
    options = write_options(query, "me", "PatchOptions")
    assert (options.manager, options.dry_run, options.field_validation, options.force) == ("me", True, "Strict", True)


def test_write_options_have_defaults() -> None:
    options = write_options({"dryRun": "", "fieldValidation": ""}, "me", "CreateOptions")
    assert (options.dry_run, options.field_validation, options.force) == (False, "Warn", None)


@pytest.mark.parametrize(
    "query, message",
    [
        ({"dryRun": "Some"}, 'dryRun: Unsupported value: ["Some"]: supported values: "All"'),
        ({"fieldValidation": "x"}, 'Unsupported value: "x": supported values: "", "Ignore", "Strict", "Warn"'),
    ],
)
def test_invalid_write_options_are_rejected(query: dict[str, str], message: str) -> None:
    with pytest.raises(Invalid) as caught:
        write_options(query, "me", "CreateOptions")
    assert message in caught.value.message
    assert caught.value.details["kind"] == "CreateOptions"


@pytest.mark.parametrize(
    "text, limit", [("", 0), ("5", 5), ("+5", 5), ("-5", 0), ("9223372036854775807", 9223372036854775807)]
)
def test_limit_is_read(text: str, limit: int) -> None:
    assert list_options({"limit": text}).limit == limit


@pytest.mark.parametrize(
    "text, why",
    [
        ("x", "invalid syntax"),
        ("1.5", "invalid syntax"),
        ("1_000", "invalid syntax"),
        (" 1", "invalid syntax"),
        ("٣", "invalid syntax"),
        ("9223372036854775808", "value out of range"),
        ("9" * 5000, "value out of range"),
    ],
)
def test_invalid_numbers_have_the_words_of_go(text: str, why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        list_options({"limit": text})


def test_initial_events_are_for_watches_only() -> None:
    with pytest.raises(Invalid, match="sendInitialEvents is forbidden for list"):
        list_options({"sendInitialEvents": "false"})
    assert watch_options({"sendInitialEvents": "false"}).initial_events is False
    assert watch_options({}).initial_events is None


@pytest.mark.parametrize("text, timeout", [("", None), ("0", None), ("-3", None), ("3", 3.0)])
def test_watch_without_a_timeout_has_the_default_one(text: str, timeout: float | None) -> None:
    assert watch_options({"timeoutSeconds": text}).timeout == timeout


@pytest.mark.parametrize(
    "query, body, expected",
    [
        ({}, None, DeleteOptions()),
        ({}, {}, DeleteOptions()),
        ({"gracePeriodSeconds": "3"}, None, DeleteOptions(grace_period=3)),
        ({"gracePeriodSeconds": "3"}, {"gracePeriodSeconds": 0}, DeleteOptions(grace_period=0)),
        ({"propagationPolicy": "Orphan"}, {"propagationPolicy": "Foreground"}, DeleteOptions(propagation="Foreground")),
        ({}, {"orphanDependents": True}, DeleteOptions(propagation="Orphan")),
        ({"orphanDependents": "false"}, None, DeleteOptions(propagation="Background")),
        ({}, {"dryRun": ["All"]}, DeleteOptions(dry_run=True)),
        ({"dryRun": "All"}, {"dryRun": []}, DeleteOptions(dry_run=True)),
        ({}, {"preconditions": {"uid": "u", "resourceVersion": "7"}}, DeleteOptions(uid="u", resource_version="7")),
    ],
)
def test_delete_options_of_the_body_win_over_the_query(
    query: dict[str, str], body: Any, expected: DeleteOptions
) -> None:
    assert delete_options(query, body) == expected


@pytest.mark.parametrize(
    "body",
    [
        [],
        "x",
        {"kind": "Pod"},
        {"preconditions": "u"},
        {"preconditions": {"uid": 1}},
        {"dryRun": "All"},
        {"dryRun": [1]},
        {"gracePeriodSeconds": "1"},
        {"gracePeriodSeconds": 1.5},
        {"gracePeriodSeconds": 2**63},
        {"propagationPolicy": {}},
    ],
)
def test_malformed_delete_options_are_rejected(body: Any) -> None:
    with pytest.raises(BadRequest, match="unable to decode the body as DeleteOptions"):
        delete_options({}, body)


def test_orphan_dependents_and_propagation_policy_exclude_each_other() -> None:
    with pytest.raises(Invalid, match="cannot be both set"):
        delete_options({}, {"orphanDependents": False, "propagationPolicy": "Orphan"})
    with pytest.raises(Invalid, match='Unsupported value: "x"'):
        delete_options({}, {"propagationPolicy": "x"})
