"""The purpose of each call."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from sandpool.explain.calls import Call
from sandpool.explain.purpose import purpose
from sandpool.explain.request import AuditedRequest

POOL, MINE, OTHER = "SandboxWarmPool/p", "SandboxClaim/mine", "SandboxClaim/other"


def call(verb: str, resource: str, code: int = 200, **more: Any) -> Call:
    resource, _, subresource = resource.partition("/")
    asked = AuditedRequest("user", verb, resource, subresource, "ns", "name.1", code, "agent")
    return Call(asked, datetime(2026, 1, 1, tzinfo=UTC), 0.0, **more)


@pytest.mark.parametrize(
    ("asked", "last", "text"),
    [
        (call("get", "sandboxes"), None, "read"),
        (call("create", "sandboxclaims", 201), None, "claim created"),
        (call("patch", "sandboxclaims", 201), None, "claim created (applied)"),
        (call("update", "pods", 201, owner="Sandbox/box"), None, "pod of sandbox box created (applied)"),
        (call("create", "sandboxes", 201, owner=POOL), None, "member of pool p created"),
        (call("create", "sandboxes", 201, owner=MINE), None, "created for claim mine"),
        (call("create", "sandboxes", 201), None, "sandbox created"),
        (call("create", "pods", 201, owner="Sandbox/box"), None, "pod of sandbox box created"),
        (call("create", "pods", 201), None, "pod created"),
        (call("create", "pods/binding", 201), None, "pod assigned to a node"),
        (call("create", "pods/eviction", 201), None, "eviction of the pod"),
        (call("get", "pods/log"), None, "read"),
        (call("patch", "pods/resize"), None, "resize of the pod"),
        (call("create", "events", 201), None, "event about name"),
        (call("delete", "sandboxclaims"), None, "claim deleted"),
        (call("deletecollection", "pods"), None, "pod deleted"),
        (call("patch", "sandboxes", owner=MINE), call("create", "sandboxes", owner=POOL), "adopted for claim mine"),
        (call("patch", "sandboxes", owner=MINE), call("patch", "sandboxes", owner=OTHER), "adopted for claim mine"),
        (call("patch", "sandboxes", owner=MINE), None, "belongs to claim mine"),
        (call("patch", "sandboxes", owner=MINE), call("patch", "sandboxes", owner=MINE), "sandbox changed"),
        (call("patch", "sandboxes", owner=POOL), None, "sandbox changed"),
        (call("update", "sandboxclaims"), None, "annotations of the claim"),
        (call("patch", "pods"), None, "labels and annotations of the pod"),
        (call("patch", "sandboxes/status"), None, "status"),
        (call("patch", "sandboxes/status", ready="True", ready_reason="Fine"), None, "Ready=True"),
        (call("patch", "pods/status", ready="False"), None, "Ready=False"),
        (call("patch", "pods/status", ready="False", ready_reason="No"), None, "Ready=False (No)"),
        (call("patch", "pods/status", ready="True"), call("patch", "pods", ready="False"), "Ready=True"),
        (
            call("patch", "pods/status", ready="True"),
            call("patch", "pods", ready="True"),
            "status, Ready=True as before",
        ),
        (call("get", "pods", 404, problem='pods "x" not found'), None, "it does not exist"),
        (call("patch", "pods", 403, problem="no rights"), None, "forbidden: no rights"),
        (call("patch", "pods", 429), None, "rate limited"),
        (call("patch", "pods", 418), None, "failed with 418"),
    ],
)
def test_each_call_has_a_purpose(asked: Call, last: Call | None, text: str) -> None:
    assert purpose(asked, last) == text
