"""Lines of logs, as the embedded server, kube-apiserver and the controllers write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def ours(ms: float, verb: str, resource: str, name: str = "", /, **more: Any) -> bytes:
    """A line of the embedded server. ``resource`` may have a subresource behind a slash."""
    resource, _, subresource = resource.partition("/")
    entry = {
        "time": stamp(ms),
        "user": "sandpool-admin",
        "verb": verb,
        "resource": resource,
        "subresource": subresource,
        "namespace": "ns",
        "name": name,
        "code": 200,
        "latencyMs": 2.5,
        "userAgent": "sandpool",
        **more,
    }
    return orjson.dumps({key: value for key, value in entry.items() if value != ""}) + b"\n"


def theirs(ms: float, verb: str, resource: str, name: str = "", /, **more: Any) -> bytes:
    """A line of kube-apiserver."""
    resource, _, subresource = resource.partition("/")
    about = {"resource": resource, "subresource": subresource, "namespace": "ns", "name": name}
    entry = {
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "stage": "ResponseComplete",
        "verb": verb,
        "user": {"username": "system:serviceaccount:agent-sandbox-system:agent-sandbox-controller"},
        "userAgent": "sandpool/1.0",
        "objectRef": {key: value for key, value in about.items() if value},
        "responseStatus": {"metadata": {}, "code": 200},
        "requestReceivedTimestamp": stamp(ms),
        "stageTimestamp": stamp(ms + 4),
        **more,
    }
    return orjson.dumps(entry) + b"\n"


def passed(ms: float, controller: str, name: str, /, **more: Any) -> bytes:
    """A log line of a controller about a reconcile."""
    entry = {"time": stamp(ms), "pass": controller, "namespace": "ns", "name": name, "ms": 1.5, **more}
    return orjson.dumps(entry) + b"\n"


def stamp(ms: float) -> str:
    return (BEGIN + timedelta(milliseconds=ms)).isoformat(timespec="microseconds").replace("+00:00", "Z")


def owned(kind: str, owner: str, name: str = "", ready: str = "") -> dict[str, Any]:
    """An object with a controller, and with a Ready condition if a status of it is given."""
    reference = {"kind": kind, "name": owner, "controller": True}
    made: dict[str, Any] = {"metadata": {"name": name, "ownerReferences": [reference]}}
    if ready:
        made["status"] = {"conditions": [{"type": "Ready", "status": ready, "reason": "Because"}]}
    return made
