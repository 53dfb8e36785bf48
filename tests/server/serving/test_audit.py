"""The audit log: what it says, and that it is never in the way."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from sandpool.server.http.cycle import RequestCycle
from sandpool.server.request.messages import Response, ServerRequest, User
from sandpool.server.serving.audit import AuditLog

ALICE = User("alice", ("dev",))


class FixedClock:
    def now(self) -> datetime:
        return datetime(2026, 11, 16, 8, 0, 1, 500, tzinfo=UTC)

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError


def cycle(method: str = "GET", path: str = "/api/v1/namespaces/ns/pods/p", **query: str) -> RequestCycle:
    request = ServerRequest(
        method, path, ALICE, query, headers={"user-agent": "kubectl/v1.36"}, source="127.0.0.1", body=b"secret"
    )
    made = RequestCycle(request, "id-1", 0.0, keep_alive=True, legacy=False)
    made.caller = ALICE
    made.sent = 7
    return made


@pytest.fixture
def log(tmp_path: Path) -> Iterator[AuditLog]:
    made = AuditLog(tmp_path / "audit.log", clock=FixedClock())
    yield made
    made.close()


def lines(path: Path) -> list[Any]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def test_line_has_user_verb_object_and_result(log: AuditLog) -> None:
    log.record(
        cycle("PATCH", "/apis/apps/v1/namespaces/ns/deployments/d/status", dryRun="All"), 409, "conflict", 0.0015
    )
    log.flush()
    assert lines(log.path) == [
        {
            "time": "2026-11-16T08:00:00.999000Z",
            "id": "id-1",
            "user": "alice",
            "groups": ["dev"],
            "verb": "patch",
            "group": "apps",
            "resource": "deployments",
            "subresource": "status",
            "namespace": "ns",
            "name": "d",
            "code": 409,
            "latencyMs": 1.5,
            "bytes": 7,
            "userAgent": "kubectl/v1.36",
            "source": "127.0.0.1",
            "dryRun": True,
            "reason": "conflict",
        }
    ]


def test_zeros_are_logged(log: AuditLog) -> None:
    made = cycle()
    made.sent = 0
    log.record(made, 200, "", 0.0)
    log.flush()
    assert (lines(log.path)[0]["bytes"], lines(log.path)[0]["latencyMs"]) == (0, 0.0)


def test_bodies_are_not_logged(log: AuditLog) -> None:
    log.record(cycle("POST"), 201, "", 0)
    log.flush()
    assert b"secret" not in log.path.read_bytes()


def test_impersonation_logs_both_users(log: AuditLog) -> None:
    made = cycle()
    made.request.user = User("bob")
    log.record(made, 200, "", 0)
    log.flush()
    assert (lines(log.path)[0]["user"], lines(log.path)[0]["impersonated"]) == ("alice", "bob")


def test_non_resource_paths_are_logged(log: AuditLog) -> None:
    log.record(cycle("GET", "/healthz"), 200, "", 0)
    log.flush()
    assert (lines(log.path)[0]["verb"], lines(log.path)[0]["path"]) == ("get", "/healthz")
    assert "resource" not in lines(log.path)[0]


@pytest.mark.parametrize(
    ("response", "name"),
    [
        (Response(object={"metadata": {"name": "made"}}), "made"),
        (Response(encoded=b'{"metadata":{"name":"made"}}'), "made"),
        (Response(encoded=b"not json"), None),
        (Response(object={"kind": "Status"}), None),
        (Response(object=["x"]), None),
        (None, None),
    ],
)
def test_create_is_logged_with_the_generated_name(log: AuditLog, response: Response | None, name: str | None) -> None:
    made = cycle("POST", "/api/v1/namespaces/ns/pods")
    made.response = response
    log.record(made, 201, "", 0)
    log.flush()
    assert lines(log.path)[0].get("name") == name


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
@pytest.mark.parametrize("encoded", [False, True])
def test_write_is_logged_with_owner_and_readiness(log: AuditLog, method: str, encoded: bool) -> None:
    owners = [
        {"kind": "ConfigMap", "name": "friend"},
        {"kind": "SandboxClaim", "name": "mine", "controller": True},
    ]
    ready = {"type": "Ready", "status": "False", "reason": "Broken", "message": "secret"}
    written = {"metadata": {"name": "p", "ownerReferences": owners}, "status": {"conditions": [ready]}}
    made = cycle(method)
    made.response = Response(encoded=orjson.dumps(written)) if encoded else Response(object=written)
    log.record(made, 200, "", 0)
    log.flush()
    line = lines(log.path)[0]
    assert (line["owner"], line["ready"], line["readyReason"]) == ("SandboxClaim/mine", "False", "Broken")
    assert b"secret" not in log.path.read_bytes()


@pytest.mark.parametrize(
    ("method", "written"),
    [
        ("GET", {"metadata": {"ownerReferences": [{"kind": "A", "name": "b", "controller": True}]}}),
        ("PATCH", {"metadata": {"ownerReferences": [{"kind": "A", "name": "b"}]}}),
        ("PATCH", {"metadata": {"ownerReferences": None}, "status": {"conditions": None}}),
        ("PATCH", {"metadata": {}, "status": {"conditions": [{"type": "Other", "status": "True"}]}}),
        ("PATCH", {"metadata": {}, "status": {"conditions": [{"status": "True"}]}}),
        ("PATCH", {"metadata": {}, "status": {"conditions": ["Ready"]}}),
        ("PATCH", ["x"]),
    ],
)
def test_object_without_owner_and_readiness_is_logged_without(log: AuditLog, method: str, written: Any) -> None:
    made = cycle(method)
    made.response = Response(object=written)
    log.record(made, 200, "", 0)
    log.flush()
    assert lines(log.path)[0].keys() & {"owner", "ready", "readyReason"} == set()
