from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from sandpool.e2b import documents
from sandpool.e2b.claims import KEY_LABEL, REQUEST_ANNOTATION, SandboxClaim, SandboxRequest
from sandpool.e2b.documents import Limits, ListQuery
from sandpool.e2b.errors import Refusal
from sandpool.service.sandboxes import Sandbox


def claim(name: str, created: str = "2026-01-01T00:00:00Z", template: str = "base", **metadata: str) -> SandboxClaim:
    return SandboxClaim.from_object(
        {
            "metadata": {
                "name": name,
                "namespace": "space",
                "uid": f"uid-{name}",
                "creationTimestamp": created,
                "labels": {KEY_LABEL: "key"},
                "annotations": {REQUEST_ANNOTATION: SandboxRequest(template, metadata).to_annotation()},
            },
            "spec": {"warmPoolRef": {"name": "python"}, "lifecycle": {"shutdownTime": "2026-01-01T01:00:00Z"}},
        }
    )


def sandbox(mode: str = "Running", *limits: dict[str, Any]) -> Sandbox:
    containers = [{"name": "main", "resources": {"limits": each}} for each in limits]
    spec = {"operatingMode": mode, "podTemplate": {"spec": {"containers": containers}}}
    return Sandbox.from_object({"metadata": {"name": "box"}, "spec": spec})


def names(query: dict[str, str], *claims: SandboxClaim) -> list[str]:
    page, _ = documents.page(ListQuery.of(query), [(each, None) for each in claims])
    return [each["sandboxID"] for each in page]


def test_request_survives_its_annotation_and_nonsense_grants_nothing() -> None:
    request = SandboxRequest("base", {"a": "b"}, public_ports=True, has_variables=True)
    assert SandboxRequest.from_annotation(request.to_annotation()) == request
    for text in ("", "{", "[]", '{"template": 1}', '{"template": "x", "metadata": []}'):
        assert SandboxRequest.from_annotation(text) == SandboxRequest("", public_ports=False)


def test_limits_are_summed_and_cpus_are_whole() -> None:
    box = sandbox("Running", {"cpu": "500m", "memory": "1Gi"}, {"cpu": "1", "ephemeral-storage": "2Gi"}, {"cpu": "?"})
    assert documents.limits(box) == Limits(2, 1 << 30, 2 << 30)
    assert documents.limits(None) == Limits()


def test_description_has_what_the_package_reads() -> None:
    described = documents.listed(claim("i1", a="b"), sandbox("Suspended", {"cpu": "2", "memory": "1Gi"}))
    assert described["state"] == "paused"
    assert (described["cpuCount"], described["memoryMB"], described["diskSizeMB"]) == (2, 1024, 0)
    assert (described["startedAt"], described["endAt"]) == ("2026-01-01T00:00:00.000Z", "2026-01-01T01:00:00.000Z")
    assert (described["metadata"], described["templateID"], described["alias"]) == ({"a": "b"}, "base", "python")


def test_list_is_filtered() -> None:
    old, new = claim("old", "2026-01-01T00:00:00Z", who="a b"), claim("new", "2026-01-02T00:00:00Z", template="x")
    assert names({}, old, new) == ["new", "old"]
    assert names({"order": "asc"}, old, new) == ["old", "new"]
    assert names({"metadata": "who=a%20b"}, old, new) == ["old"]
    assert names({"metadata": "who=a+b"}, old, new) == ["old"]
    assert names({"metadata": "who=other"}, old, new) == []
    assert names({"template": "x"}, old, new) == ["new"]
    assert names({"template": "python"}, old, new) == ["new", "old"]
    assert names({"startedAfter": "2026-01-01T12:00:00Z"}, old, new) == ["new"]
    assert names({"startedAfter": "2026-01-01T14:00:00 02:00"}, old, new) == ["new"]  # a plus sign, decoded
    assert names({"state": "paused"}, old, new) == []
    assert names({"state": "running,paused"}, old, new) == ["new", "old"]


def test_pages_show_every_sandbox_once_while_others_come_and_go() -> None:
    claims = [claim(f"i{number}", f"2026-01-01T00:00:0{number // 2}Z") for number in range(7)]
    for order in ("asc", "desc"):
        seen: list[str] = []
        token, left = "", list(claims)
        while True:
            query = ListQuery.of({"limit": "2", "order": order, **({"nextToken": token} if token else {})})
            page, token = documents.page(query, [(each, None) for each in left])
            seen += [each["sandboxID"] for each in page]
            left = [each for each in left if each.id != seen[-1]]  # the last one shown ends
            if not token:
                break
        assert sorted(seen) == [each.id for each in claims]


@pytest.mark.parametrize(
    "query",
    [
        *({"limit": limit} for limit in ("0", "101", "x", "-1", "9" * 5000)),
        *({"nextToken": token} for token in ("*", "AAA=A", "/w==")),
        {"state": "gone"},
        {"order": "up"},
        {"startedAfter": "yesterday"},
    ],
)
def test_queries_that_make_no_sense_are_refused(query: dict[str, str]) -> None:
    with pytest.raises(Refusal):
        ListQuery.of(query)


def test_times_are_in_utc() -> None:
    assert documents.timestamp(datetime.fromisoformat("2026-01-01T02:00:00+02:00")) == "2026-01-01T00:00:00.000Z"
