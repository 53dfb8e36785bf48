"""Calls are parsed from lines of audit logs."""

from __future__ import annotations

import io
import tracemalloc
from datetime import timedelta

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.explain.calls import Call, NotAnAuditLog, joined, read_calls
from sandpool.explain.request import AuditedRequest
from tests.explain.audit_lines import BEGIN, ours, owned, stamp, theirs

ACCOUNT = "system:serviceaccount:agent-sandbox-system:agent-sandbox-controller"


def test_line_of_the_embedded_log_is_a_call() -> None:
    line = ours(
        7, "patch", "sandboxes/status", "box", owner="SandboxClaim/c", ready="False", readyReason="No", reason="odd"
    )
    asked = AuditedRequest("sandpool-admin", "patch", "sandboxes", "status", "ns", "box", 200, "sandpool")
    started = BEGIN + timedelta(milliseconds=7)
    assert list(read_calls([line])) == [Call(asked, started, 0.0025, "odd", "SandboxClaim/c", "False", "No")]


def test_line_of_a_kubernetes_log_with_response_is_a_call() -> None:
    line = theirs(7, "create", "sandboxes", responseObject=owned("SandboxWarmPool", "p", "box", "True"))
    asked = AuditedRequest(ACCOUNT, "create", "sandboxes", "", "ns", "box", 200, "sandpool/1.0")
    started = BEGIN + timedelta(milliseconds=7)
    assert list(read_calls([line])) == [Call(asked, started, 0.004, "", "SandboxWarmPool/p", "True", "Because")]


@pytest.mark.parametrize(
    ("bodies", "name", "owner"),
    [
        ({}, "", ""),
        ({"requestObject": owned("Sandbox", "s", "asked")}, "asked", "Sandbox/s"),
        ({"requestObject": [{"op": "add", "path": "/metadata/labels/a", "value": "b"}]}, "", ""),
        ({"requestObject": owned("A", "a", "asked"), "responseObject": owned("B", "b", "got")}, "got", "B/b"),
        ({"responseObject": {"kind": "Status", "metadata": {}}, "requestObject": owned("A", "a", "x")}, "x", "A/a"),
        (
            {"responseObject": {"metadata": {"name": "alone", "ownerReferences": [{"kind": "A", "name": "a"}]}}},
            "alone",
            "",
        ),
    ],
)
def test_name_and_owner_come_from_the_recorded_bodies(bodies: dict[str, object], name: str, owner: str) -> None:
    (call,) = read_calls([theirs(0, "create", "pods", **bodies)])
    assert (call.request.name, call.owner) == (name, owner)


def test_kubernetes_request_is_one_call() -> None:
    lines = [theirs(0, "get", "pods", "p", stage=stage) for stage in ("RequestReceived", "ResponseStarted", "Panic")]
    assert list(read_calls(lines)) == []


def test_log_may_mix_both_formats() -> None:
    assert len(list(read_calls([ours(0, "get", "pods", "p"), b"\n", theirs(1, "get", "pods", "p")]))) == 2


def test_owner_of_another_kind_is_not_returned() -> None:
    (call,) = read_calls([ours(0, "patch", "sandboxes", "s", owner="SandboxClaim/c")])
    assert (call.owner_of_kind("SandboxClaim"), call.owner_of_kind("SandboxWarmPool")) == ("c", "")


@given(cut=st.integers(0, len(ours(1, "get", "pods", "b")) - 1))
def test_torn_last_line_is_skipped(cut: int) -> None:
    log = ours(0, "get", "pods", "a") + ours(1, "get", "pods", "b")[:cut]
    assert [call.request.name for call in read_calls(io.BytesIO(log))] == ["a"]


def test_torn_line_in_the_middle_is_skipped() -> None:
    lines = [ours(0, "get", "pods", "a"), ours(1, "get", "pods", "b")[:40] + b"\n", ours(2, "get", "pods", "c")]
    assert [call.request.name for call in read_calls(lines)] == ["a", "c"]


@pytest.mark.parametrize(
    "line",
    [
        b"I1116 08:00:00 controller started\n",
        b"[]\n",
        b'"text"\n',
        b"7\n",
        b"{}\n",
        b'{"level":"info","msg":"hello"}\n',
        ours(0, "get", "pods", "p", time="yesterday"),
        ours(0, "get", "pods", "p", latencyMs="fast"),
        theirs(0, "get", "pods", "p", user="alice"),
        theirs(0, "get", "pods", "p", responseStatus={}),
        b"\xff\xfe\n",
    ],
)
def test_file_that_is_no_audit_log_is_rejected_with_advice(line: bytes) -> None:
    with pytest.raises(NotAnAuditLog, match="line 1 is not a line of an audit log: pass the FILE of `sandpool up"):
        list(read_calls([line], mentioning=["missing"]))


def test_invalid_later_line_is_reported_with_its_number() -> None:
    with pytest.raises(NotAnAuditLog, match="line 2 "):
        list(read_calls([ours(0, "get", "pods", "p"), b'{"msg":"hello"}\n']))


def test_only_lines_that_mention_a_name_are_decoded() -> None:
    decoys = (ours(n, "get", "pods", f"other-{n}") for n in range(3))
    lines = [*decoys, ours(9, "get", "pods", "wanted"), b'{"no": "log"}\n']
    assert [call.request.name for call in read_calls(lines, mentioning=["wanted"])] == ["other-0", "wanted"]


def test_memory_does_not_depend_on_the_length_of_a_log() -> None:
    """The cache of parsed times is full after 10,000 lines."""

    def peak(length: int) -> int:
        tracemalloc.start()
        try:
            calls = read_calls(ours(number, "patch", "sandboxes", f"box-{number}") for number in range(length))
            assert sum(1 for _ in calls) == length
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    short = peak(10_000)
    assert peak(40_000) < 1.5 * short


def passed_on(ms: float, name: str, verb: str = "patch", **more: object) -> tuple[bytes, bytes]:
    """The two lines of a request for a claim."""
    outer = theirs(ms, verb, "sandboxclaims", name, auditID="x")
    return outer, ours(ms + 1, verb, "sandboxclaims", name, id="x", **more)


@pytest.mark.parametrize("turned", [False, True], ids=["theirs first", "ours first"])
def test_request_that_kube_apiserver_passed_on_is_one_call(turned: bool) -> None:
    outer, inner = passed_on(5, "c", ready="True", readyReason="Because", owner="Job/j")
    [call] = joined(read_calls([inner, outer] if turned else [outer, inner]))
    asked = AuditedRequest(ACCOUNT, "patch", "sandboxclaims", "", "ns", "c", 200, "sandpool/1.0")
    started = BEGIN + timedelta(milliseconds=5)
    assert call == Call(asked, started, 0.004, "", "Job/j", "True", "Because"), "with the times of kube-apiserver"


def test_create_without_a_name_gets_that_of_our_log() -> None:
    outer = theirs(5, "create", "sandboxclaims", auditID="x")
    [call] = joined(read_calls([outer, ours(6, "create", "sandboxclaims", "c", id="x")]))
    assert call.request.name == "c"


def test_requests_with_an_id_that_a_client_chose_are_calls_of_their_own() -> None:
    lines = [*passed_on(1, "c"), *passed_on(9, "c"), *passed_on(20, "c", "get")]
    lines += [theirs(30, "patch", "pods", "p", auditID="x"), ours(31, "patch", "sandboxes", "p", id="x")]
    found = joined(read_calls(lines))
    asked = [(call.request.verb, call.request.resource) for call in found]
    claims = "sandboxclaims"
    assert asked == [("patch", claims), ("patch", claims), ("get", claims), ("patch", "pods"), ("patch", "sandboxes")]
    assert len(joined(read_calls([ours(n, "get", "pods", "p", id="x") for n in range(3)]))) == 3
    assert len(joined(read_calls([ours(n, "get", "pods", "p") for n in range(3)]))) == 3


def test_times_of_both_formats_are_utc() -> None:
    assert [call.started for call in read_calls([ours(5, "get", "pods", "p"), theirs(5, "get", "pods", "p")])] == [
        BEGIN + timedelta(milliseconds=5)
    ] * 2
    assert orjson.loads(ours(5, "get", "pods", "p"))["time"] == stamp(5)
