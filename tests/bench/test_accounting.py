from __future__ import annotations

from sandpool.bench.accounting import CONTROLLERS, NODES, RequestCounts
from sandpool.explain.audit import AuditedRequest


def asked(
    verb: str, resource: str, *, code: int = 200, subresource: str = "", agent: str = CONTROLLERS
) -> AuditedRequest:
    return AuditedRequest("admin", verb, resource, subresource, "ns", "name", code, agent)


def request_counts(*requests: AuditedRequest) -> RequestCounts:
    return RequestCounts.of(requests, lambda each: each.agent)


def test_requests_are_counted_by_writer_and_kind() -> None:
    found = request_counts(
        asked("patch", "sandboxes"),
        asked("patch", "sandboxes"),
        asked("patch", "sandboxes", subresource="status"),
        asked("list", "sandboxes"),
        asked("patch", "pods", agent=NODES),
    )
    assert found.requests == {
        (CONTROLLERS, "patch sandboxes"): 2,
        (CONTROLLERS, "patch sandboxes/status"): 1,
        (CONTROLLERS, "list sandboxes"): 1,
        (NODES, "patch pods"): 1,
    }
    assert (found.writes(CONTROLLERS), found.writes(NODES)) == (3, 1)


def test_already_exists_is_not_counted_as_a_conflict() -> None:
    found = request_counts(
        asked("create", "pods", code=409),
        asked("patch", "sandboxes", code=409),
        asked("create", "pods", subresource="binding", code=409, agent=NODES),
    )
    assert found.conflicts == {CONTROLLERS: 1, NODES: 1}
    assert found.refused == {(CONTROLLERS, "patch sandboxes", 409): 1, (NODES, "create pods/binding", 409): 1}


def test_not_found_responses_are_counted() -> None:
    assert request_counts(asked("delete", "pods", code=404), asked("get", "pods")).missing == {CONTROLLERS: 1}
