"""Reading audit logs."""

from __future__ import annotations

from pathlib import Path

from sandpool.explain.audit import Audit, AuditedRequest, request_of_kubernetes, request_of_sandpool

POD = AuditedRequest("controllers", "create", "pods", "", "ns", "box", 201, "agent")
STATUS = AuditedRequest("node", "patch", "pods", "status", "ns", "box", 200, "")


def test_line_of_the_embedded_log_is_read() -> None:
    line = {
        "time": "2026-01-01T00:00:00.000000Z",
        "user": "controllers",
        "verb": "create",
        "resource": "pods",
        "namespace": "ns",
        "name": "box",
        "code": 201,
        "userAgent": "agent",
    }
    assert request_of_sandpool(line) == POD


def test_line_of_a_kubernetes_log_is_read() -> None:
    line = {
        "stage": "ResponseComplete",
        "verb": "patch",
        "user": {"username": "node"},
        "objectRef": {"resource": "pods", "subresource": "status", "namespace": "ns", "name": "box"},
        "responseStatus": {"metadata": {}, "code": 200},
    }
    assert request_of_kubernetes(line) == STATUS


def test_request_without_a_resource_is_skipped() -> None:
    line = {"verb": "get", "user": {"username": "node"}, "responseStatus": {"code": 200}}
    assert request_of_kubernetes(line).resource == ""


def test_request_is_printed_as_verb_and_resource() -> None:
    assert (str(POD), POD.writes) == ("create pods", True)
    assert (str(STATUS), STATUS.writes) == ("patch pods/status", True)
    assert not AuditedRequest("users", "watch", "pods", "", "ns", "", 200, "").writes


def test_growing_log_is_read_without_partial_lines(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    one = b'{"user":"node","verb":"get","resource":"pods","namespace":"%s","code":200}\n'
    log.write_bytes(one % b"a" + one[:20])
    flushed = []
    audit = Audit(log, request_of_sandpool, lambda: flushed.append(True))
    assert len(audit) == 1
    with log.open("ab") as file:
        file.write(one[20:] % b"b" + one % b"b")
    assert len(audit.requests(since=1)) == 2
    assert len(audit.requests(namespace="b")) == 2
    assert audit.requests(user="users") == []
    assert len(flushed) == 4


def test_reconciles_in_a_log_are_not_requests(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    passed = b'{"time":"2026-01-01T00:00:00Z","pass":"sandbox","namespace":"ns","name":"box","ms":1.0}\n'
    log.write_bytes(passed + b'{"user":"node","verb":"get","resource":"pods","namespace":"ns","code":200}\n')
    assert [str(each) for each in Audit(log, request_of_sandpool).requests()] == ["get pods"]
