"""The timeline of an object: its calls and their order."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.explain.calls import Call, Reconcile
from sandpool.explain.timeline import Step, objects_of_claim, objects_of_sandbox, timeline
from tests.explain.audit_lines import BEGIN, ours, owned, passed, theirs

OURS = [
    ours(0, "create", "sandboxes", "box", owner="SandboxWarmPool/pool", code=201),
    ours(10, "create", "pods", "box", owner="Sandbox/box", code=201, ready=""),
    ours(20, "patch", "pods/status", "box", owner="Sandbox/box", ready="True", userAgent="node"),
    ours(30, "patch", "sandboxes/status", "box", owner="SandboxWarmPool/pool", ready="True"),
    ours(1000, "create", "sandboxclaims", "mine", code=201, userAgent="kubectl/v1"),
    ours(1005, "patch", "sandboxes", "box", owner="SandboxWarmPool/pool", code=409, reason="too late"),
    ours(1010, "patch", "sandboxes", "box", owner="SandboxClaim/mine", ready="True"),
    ours(1020, "patch", "sandboxclaims/status", "mine", ready="True"),
    ours(1030, "create", "events", "mine.18e8", code=201),
]
THEIRS = [
    theirs(0, "create", "sandboxes", responseObject=owned("SandboxWarmPool", "pool", "box")),
    theirs(10, "create", "pods", "box", responseObject=owned("Sandbox", "box", "box")),
    theirs(20, "patch", "pods/status", "box", responseObject=owned("Sandbox", "box", "box", "True")),
    theirs(30, "patch", "sandboxes/status", "box", responseObject=owned("SandboxWarmPool", "pool", "box", "True")),
    theirs(1000, "create", "sandboxclaims", "mine", responseObject={"metadata": {"name": "mine"}}),
    theirs(
        1005,
        "patch",
        "sandboxes",
        "box",
        responseStatus={"code": 409, "message": "too late"},
        responseObject={"kind": "Status"},
    ),
    theirs(1010, "patch", "sandboxes", "box", responseObject=owned("SandboxClaim", "mine", "box", "True")),
    theirs(
        1020,
        "patch",
        "sandboxclaims/status",
        "mine",
        responseObject={"status": {"conditions": [{"type": "Ready", "status": "True"}]}},
    ),
    theirs(1030, "create", "events", "mine.18e8", requestObject={"note": "adopted"}),
]
STORY = [
    (0, "member of pool pool created"),
    (10, "pod of sandbox box created"),
    (10, "Ready=True"),
    (10, "Ready=True"),
    (970, "claim created"),
    (5, "conflict: another write came first, or it exists already: too late"),
    (5, "adopted for claim mine"),
    (10, "Ready=True"),
    (10, "event about mine"),
]
FOREIGN = [
    ours(1, "create", "sandboxes", "box-2", owner="SandboxWarmPool/pool", code=201),
    ours(2, "create", "sandboxclaims", "mine-too", code=201),
    ours(3, "patch", "sandboxes", "box-2", owner="SandboxClaim/mine-too"),
    ours(4, "create", "sandboxclaims", "mine", namespace="elsewhere", code=201),
    ours(5, "patch", "sandboxes", "box", namespace="elsewhere", owner="SandboxClaim/mine"),
    ours(6, "patch", "pods", "mine", owner="ReplicaSet/box"),
    ours(7, "get", "configmaps", "box"),
    ours(8, "watch", "sandboxclaims", ""),
    ours(9, "create", "events", "mine-too.18e8", code=201),
    ours(9, "get", "", "", path="/healthz/mine"),
]


def story(steps: list[Step]) -> list[tuple[float, str]]:
    return [(round(step.delta_ms, 3), step.purpose) for step in steps]


@pytest.mark.parametrize("log", [OURS, THEIRS], ids=["sandpool", "kubernetes"])
def test_timeline_of_a_claim_begins_with_its_sandbox(log: list[bytes]) -> None:
    lines = log.copy
    assert story(timeline(lines, objects_of_claim(lines, "ns", "mine"))) == STORY


@pytest.mark.parametrize("log", [OURS, THEIRS], ids=["sandpool", "kubernetes"])
def test_timeline_of_a_sandbox_equals_that_of_its_claim(log: list[bytes]) -> None:
    lines = log.copy
    assert story(timeline(lines, objects_of_sandbox(lines, "ns", "box"))) == STORY


@given(st.permutations(OURS + FOREIGN))
def test_foreign_objects_and_line_order_do_not_change_the_timeline(log: list[bytes]) -> None:
    lines = log.copy
    assert story(timeline(lines, objects_of_claim(lines, "ns", "mine"))) == STORY


def test_unbound_claim_has_only_its_own_calls() -> None:
    lines = OURS[:6].copy
    assert story(timeline(lines, objects_of_claim(lines, "ns", "mine"))) == [(0, "claim created")]


def test_steps_are_numbered_and_reads_can_be_left_out() -> None:
    lines = [ours(-5, "get", "sandboxclaims", "mine", code=404), *OURS].copy
    related = objects_of_claim(lines, "ns", "mine")
    assert [step.number for step in timeline(lines, related)] == list(range(1, 11))
    assert timeline(lines, related)[0].purpose == "it does not exist"
    assert story(timeline(lines, related, writes_only=True)) == STORY


def test_pod_of_another_name_belongs_to_its_sandbox() -> None:
    lines = [*OURS, ours(2000, "patch", "pods", "box-pod", owner="Sandbox/box")].copy
    last = timeline(lines, objects_of_claim(lines, "ns", "mine"))[-1].entry
    assert isinstance(last, Call)
    assert last.request.name == "box-pod"


PASSES = [
    passed(5, "sandbox", "box", requeueAfter=30.0),
    passed(1002, "sandboxclaim", "mine"),
    passed(1012, "sandboxclaim", "mine", problem="cannot be reached"),
    passed(1040, "sandboxclaim-notes", "mine", requeueAfter=0.0),
]
OTHER_PASSES = [
    passed(6, "sandbox", "mine"),
    passed(7, "sandboxclaim", "box"),
    passed(8, "sandboxwarmpool", "box"),
    passed(9, "sandboxclaim", "mine", namespace="elsewhere"),
]


def test_reconciles_are_between_the_calls() -> None:
    lines = [*OURS, *OTHER_PASSES, *PASSES].copy
    for related in (objects_of_claim(lines, "ns", "mine"), objects_of_sandbox(lines, "ns", "box")):
        steps = timeline(lines, related)
        assert story([step for step in steps if isinstance(step.entry, Reconcile)]) == [
            (5, "done; again in 30 s"),
            (2, "done until the next change"),
            (2, "failed, will be retried: cannot be reached"),
            (10, "again at once"),
        ]
        assert [step.purpose for step in steps if isinstance(step.entry, Call)] == [purpose for _, purpose in STORY]
        assert story(timeline(lines, related, writes_only=True)) == STORY


def test_claim_that_had_two_sandboxes_shows_both() -> None:
    lines = [*OURS, ours(2000, "create", "sandboxes", "mine", owner="SandboxClaim/mine", code=201)].copy
    assert timeline(lines, objects_of_claim(lines, "ns", "mine"))[-1].purpose == "created for claim mine"


def test_fields_missing_from_a_patch_stay_known() -> None:
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    lines = [
        theirs(0, "create", "sandboxes", "box", requestObject=owned("SandboxWarmPool", "pool", "box")),
        theirs(1, "patch", "sandboxes", "box", requestObject=owned("SandboxClaim", "mine")),
        theirs(2, "patch", "sandboxes/status", "box", requestObject=ready),
        theirs(3, "patch", "sandboxes", "box", requestObject=owned("SandboxClaim", "mine")),
        theirs(4, "patch", "sandboxes/status", "box", requestObject=ready),
    ].copy
    assert [step.purpose for step in timeline(lines, objects_of_claim(lines, "ns", "mine"))] == [
        "member of pool pool created",
        "adopted for claim mine",
        "Ready=True",
        "sandbox changed",
        "status, Ready=True as before",
    ]


def test_unknown_claim_has_an_empty_timeline() -> None:
    assert timeline(OURS.copy, objects_of_claim(OURS.copy, "ns", "missing")) == []


#: The claim ``mine`` is released, and another one of its name gets another sandbox while the first one is deleted.
AGAIN = [
    *OURS,
    ours(1500, "patch", "sandboxes", "box2", owner="SandboxWarmPool/pool", ready="True"),
    ours(2000, "delete", "sandboxclaims", "mine"),
    passed(2001, "sandboxclaim", "mine"),
    ours(2010, "create", "sandboxclaims", "mine", code=201),
    ours(2015, "patch", "sandboxes", "box2", owner="SandboxClaim/mine", ready="True"),
    ours(2020, "delete", "sandboxes", "box", owner="SandboxClaim/mine"),
    ours(2021, "patch", "sandboxes/status", "box", owner="SandboxClaim/mine", ready="False"),
    ours(2025, "patch", "sandboxclaims/status", "mine", ready="True"),
]


def purposes(steps: list[Step]) -> list[str]:
    return [step.purpose for step in steps]


@pytest.mark.parametrize("created", [None, BEGIN + timedelta(seconds=2)], ids=["last", "creationTimestamp"])
def test_claim_of_a_used_name_has_only_its_own_calls(created: datetime | None) -> None:
    related = objects_of_claim(AGAIN.copy, "ns", "mine", created)
    assert related.sandboxes == {"box2"}
    assert purposes(timeline(AGAIN.copy, related)) == [
        "sandbox changed",
        "claim created",
        "adopted for claim mine",
        "Ready=True",
    ]


def test_earlier_claim_of_a_used_name_can_be_shown_too() -> None:
    related = objects_of_claim(AGAIN.copy, "ns", "mine", BEGIN + timedelta(seconds=1))
    assert related.sandboxes == {"box"}
    assert purposes(timeline(AGAIN.copy, related, writes_only=True))[: len(STORY)] == [purpose for _, purpose in STORY]
    assert "claim deleted" in purposes(timeline(AGAIN.copy, related))


@given(st.permutations(AGAIN))
def test_sandboxes_of_a_used_name_belong_to_their_own_claims(log: list[bytes]) -> None:
    first, second = objects_of_sandbox(log.copy, "ns", "box"), objects_of_sandbox(log.copy, "ns", "box2")
    created = [
        [step.entry.started for step in timeline(log.copy, each) if step.purpose == "claim created"]
        for each in (first, second)
    ]
    assert created == [[BEGIN + timedelta(milliseconds=1000)], [BEGIN + timedelta(milliseconds=2010)]]


def test_cold_sandbox_of_a_used_name_begins_with_its_own_creation() -> None:
    def life(ms: int) -> list[bytes]:
        return [
            ours(ms, "create", "sandboxclaims", "mine", code=201),
            ours(ms + 5, "create", "sandboxes", "mine", owner="SandboxClaim/mine", code=201),
            ours(ms + 7, "create", "pods", "mine", owner="Sandbox/mine", code=201),
            ours(ms + 9, "patch", "pods/status", "mine", owner="Sandbox/mine", ready="True"),
            ours(ms + 20, "delete", "sandboxclaims", "mine"),
        ]

    lines = [*life(0), *life(100), ours(102, "delete", "sandboxes", "mine", owner="SandboxClaim/mine")].copy
    assert purposes(timeline(lines, objects_of_claim(lines, "ns", "mine"))) == [
        "claim created",
        "created for claim mine",
        "pod of sandbox mine created",
        "Ready=True",
        "claim deleted",
    ]


def test_state_of_a_deleted_object_is_not_that_of_the_next_one() -> None:
    lines = [
        ours(0, "create", "pods", "box", owner="Sandbox/box", code=201),
        ours(1, "patch", "pods/status", "box", owner="Sandbox/box", ready="True"),
        ours(2, "delete", "pods", "box", owner="Sandbox/box"),
        ours(3, "create", "pods", "box", owner="Sandbox/box", code=201),
        ours(4, "patch", "pods/status", "box", owner="Sandbox/box", ready="True"),
    ].copy
    assert purposes(timeline(lines, objects_of_sandbox(lines, "ns", "box"))) == [
        "pod of sandbox box created",
        "Ready=True",
        "pod deleted",
        "pod of sandbox box created",
        "Ready=True",
    ]


def test_logs_of_both_apis_are_one_timeline() -> None:
    """kube-apiserver logs the requests of users for claims, too, and alone those for pods; ours has the controllers."""
    created = {"code": 201}
    theirs_of_users = [
        theirs(0, "create", "sandboxclaims", "mine", auditID="a", responseStatus=created),
        theirs(40, "patch", "pods", "box"),
        theirs(60, "patch", "sandboxclaims", "mine", auditID="b"),
    ]
    of_both = [
        ours(2, "create", "sandboxclaims", "mine", id="a", **created),
        ours(20, "patch", "sandboxes", "box", owner="SandboxClaim/mine"),
        ours(30, "patch", "sandboxclaims/status", "mine", ready="True"),
        ours(61, "patch", "sandboxclaims", "mine", id="b"),
    ]
    for lines in ([*theirs_of_users, *of_both], [*of_both, *theirs_of_users]):
        steps = timeline(lines.copy, objects_of_claim(lines.copy, "ns", "mine"))
        assert [
            (str(step.entry.request), step.entry.started - BEGIN) for step in steps if isinstance(step.entry, Call)
        ] == [
            ("create sandboxclaims", timedelta(0)),
            ("patch sandboxes", timedelta(milliseconds=20)),
            ("patch sandboxclaims/status", timedelta(milliseconds=30)),
            ("patch pods", timedelta(milliseconds=40)),
            ("patch sandboxclaims", timedelta(milliseconds=60)),
        ]


def test_applied_claim_begins_with_its_patch() -> None:
    lines = [
        ours(0, "create", "sandboxclaims", "mine", code=201),
        ours(10, "delete", "sandboxclaims", "mine"),
        ours(20, "patch", "sandboxclaims", "mine", code=201, userAgent="kubectl/v1"),
        ours(30, "patch", "sandboxclaims", "mine", code=200, userAgent="kubectl/v1"),
    ].copy
    assert purposes(timeline(lines, objects_of_claim(lines, "ns", "mine"))) == [
        "claim created (applied)",
        "annotations of the claim",
    ]


def test_claim_without_a_sandbox_does_not_decode_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = 0
    loads = orjson.loads

    def counted(line: bytes) -> object:
        nonlocal decoded
        decoded += 1
        return loads(line)

    monkeypatch.setattr("sandpool.explain.calls.orjson.loads", counted)
    noise = [ours(n, "patch", "sandboxes", f"other-{n}", owner=f"SandboxClaim/c{n}") for n in range(1000)]
    lines = [*noise, OURS[4]].copy
    assert purposes(timeline(lines, objects_of_claim(lines, "ns", "mine"))) == ["claim created"]
    assert decoded < 10


def test_long_log_is_decoded_only_where_it_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = 0
    loads = orjson.loads

    def counted(line: bytes) -> object:
        nonlocal decoded
        decoded += 1
        return loads(line)

    noise = [ours(n, "patch", "sandboxes", f"other-{n}", owner=f"SandboxClaim/c{n}") for n in range(10_000)]

    def lines() -> Iterator[bytes]:
        yield from noise
        yield from OURS

    monkeypatch.setattr("sandpool.explain.calls.orjson.loads", counted)
    assert story(timeline(lines, objects_of_claim(lines, "ns", "mine"))) == STORY
    assert decoded < 50
