"""The audit log: one JSON line per request, for timelines and for investigations.

The request itself only stores a few references (see ``engine.jsonl``). Other parts of the process may log to the same
file, so that one file holds the whole timeline.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from sandpool.api.conditions import READY, find_condition
from sandpool.engine.clock import Clock, SystemClock, micro_timestamp
from sandpool.engine.jsonl import JsonlWriter
from sandpool.server.http.cycle import RequestCycle
from sandpool.server.request.messages import User
from sandpool.server.request.request_info import parse

_WRITING = frozenset({"POST", "PUT", "PATCH"})


class _Record(NamedTuple):
    """The part of a request that is kept until its line is written; never the body."""

    finished: datetime
    seconds: float
    id: str
    caller: User
    user: User
    method: str
    path: str
    query: Any
    agent: str
    source: str
    code: int
    sent: int
    problem: str
    written: Any  # the object in the response to a write, decoded or as bytes

    def line(self) -> bytes:
        return _line(self)


class AuditLog(JsonlWriter):
    """A ``JsonlWriter`` that knows requests."""

    def __init__(
        self, path: Path, *, rotate_bytes: int = 100 * 1024 * 1024, keep: int = 5, clock: Clock | None = None
    ) -> None:
        super().__init__(path, rotate_bytes=rotate_bytes, keep=keep)
        self._clock = clock or SystemClock()

    def record(self, cycle: RequestCycle, status: int, problem: str, seconds: float) -> None:
        request, response = cycle.request, cycle.response
        written = None
        if request.method in _WRITING and response is not None:
            written = response.object if response.object is not None else response.encoded
        self.note(
            _Record(
                self._clock.now(),
                seconds,
                cycle.audit_id,
                cycle.caller,
                request.user,
                request.method,
                request.path,
                request.query,
                request.headers.get("user-agent", ""),
                request.source,
                status,
                cycle.sent,
                problem,
                written,
            )
        )


def _line(record: _Record) -> bytes:
    info = parse(record.method, record.path, record.query)
    impersonating = record.user is not record.caller
    written = _decoded(record.written)
    ready = _ready(written)
    entry: dict[str, Any] = {
        "time": micro_timestamp(record.finished - timedelta(seconds=record.seconds)),
        "id": record.id,
        "user": record.caller.name,
        "groups": list(record.caller.groups),
        "impersonated": record.user.name if impersonating else "",
        "verb": info.verb,
        "group": info.group,
        "resource": info.resource,
        "subresource": info.subresource,
        "namespace": info.namespace,
        "name": info.name or _name(written),
        "path": "" if info.is_resource else record.path,
        "code": record.code,
        "latencyMs": round(record.seconds * 1000, 3),
        "bytes": record.sent,
        "userAgent": record.agent,
        "source": record.source,
        "dryRun": "dryRun" in record.query,
        "reason": record.problem,
        "owner": _owner(written),
        "ready": ready.get("status", ""),
        "readyReason": ready.get("reason", ""),
    }
    line = {key: value for key, value in entry.items() if value != "" and value != [] and value is not False}
    return orjson.dumps(line) + b"\n"


def _decoded(written: Any) -> Any:
    try:
        return orjson.loads(written) if isinstance(written, bytes) else written
    except orjson.JSONDecodeError:
        return None


def _name(written: Any) -> str:
    """The name of the created object, which the path of a create does not contain."""
    try:
        name = written["metadata"]["name"]
    except (KeyError, TypeError):
        return ""
    return name if isinstance(name, str) else ""


def _owner(written: Any) -> str:
    """The controller of the object after the write, as ``Kind/name``: it tells an adoption from any other patch."""
    try:
        references = written["metadata"]["ownerReferences"]
        return next(f"{each['kind']}/{each['name']}" for each in references if each.get("controller"))
    except (KeyError, TypeError, StopIteration):
        return ""


def _ready(written: Any) -> dict[str, str]:
    """The Ready condition after the write; empty if the object has none."""
    try:
        ready: dict[str, str] = find_condition(written["status"]["conditions"], READY) or {}
    except (KeyError, TypeError):
        return {}
    return ready
