"""Comparison of granted and used permissions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from tests.support.aggregated_backend import ACCOUNT as AGGREGATED_ACCOUNT
from tests.support.installed_cluster import ACCOUNT
from tests.support.permissions import Use, permissions
from tests.support.permissions_report import granted

GRANTED = permissions(
    [
        {"apiGroups": [""], "resources": ["pods", "services"], "verbs": ["get", "list"]},
        {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
    ]
)


def asked(verb: str, resource: str, subresource: str = "", user: str = "robot", **more: Any) -> bytes:
    about = {"resource": resource, **({"subresource": subresource} if subresource else {})}
    return orjson.dumps({"verb": verb, "user": {"username": user}, "objectRef": about, **more}) + b"\n"


def use_of(path: Path, *lines: bytes) -> Use:
    (path / "audit.log").write_bytes(b"".join(lines))
    use = Use("robot")
    use.note(path / "audit.log")
    return use


def test_exactly_used_permissions_have_no_findings(tmp_path: Path) -> None:
    lines = [asked(verb, what) for verb in ("get", "list") for what in ("pods", "services")]
    use = use_of(tmp_path, *lines, asked("patch", "pods", "status"))
    assert use.used == GRANTED
    assert use.findings(GRANTED, complete=True) == []


def test_unused_permission_is_reported_in_a_complete_log(tmp_path: Path) -> None:
    use = use_of(tmp_path, asked("get", "pods"), asked("list", "pods"), asked("patch", "pods", "status", user="alice"))
    assert use.findings(GRANTED, complete=False) == []
    assert use.findings(GRANTED, complete=True) == [
        "granted and never used: patch pods/status",
        "granted and never used: get services",
        "granted and never used: list services",
    ]


def test_rbac_denial_is_reported_and_quota_denial_is_not(tmp_path: Path) -> None:
    forbidden = {"authorization.k8s.io/decision": "forbid"}
    allowed = {"authorization.k8s.io/decision": "allow"}
    use = use_of(
        tmp_path,
        asked("delete", "nodes", annotations=forbidden),
        asked("create", "pods", annotations=allowed, responseStatus={"code": 403}),
    )
    assert use.findings(GRANTED, complete=False) == ["forbidden: delete nodes"]
    forgiving = Use("robot")
    forgiving.note(tmp_path / "audit.log", refusals=False)
    assert (forgiving.forbidden, forgiving.used) == (set(), {("pods", "create")})


def test_permissions_of_all_users_and_non_resource_requests_are_ignored(tmp_path: Path) -> None:
    version = orjson.dumps({"verb": "get", "user": {"username": "robot"}, "requestURI": "/version"}) + b"\n"
    assert use_of(tmp_path, asked("create", "selfsubjectaccessreviews"), version).used == set()


def test_each_account_is_judged_by_what_it_was_granted() -> None:
    controllers, apiserver = granted(ACCOUNT), granted(AGGREGATED_ACCOUNT)
    assert ("sandboxclaims", "patch") in controllers
    assert not any(what.startswith("sandbox") for what, _ in apiserver), "these it serves itself"
    assert {("apiservices", "patch"), ("customresourcedefinitions", "get"), ("leases", "patch")} <= apiserver
    assert {("pods", "create"), ("persistentvolumeclaims", "patch")} <= controllers & apiserver
