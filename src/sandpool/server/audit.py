"""The audit log: one JSON line per request, for timelines and for whoever asks who did that.

A request pays for noting a few references; a thread makes lines of them and writes, at least once a second. When the
thread cannot keep up or the disk refuses, records are dropped and counted (``dropped``): the log must never be the
reason why a request fails or waits.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from sandpool.api.conditions import READY, find_condition
from sandpool.engine.clock import Clock, SystemClock, micro_timestamp
from sandpool.server.exchange import User
from sandpool.server.http.turn import Turn
from sandpool.server.requests import parse

logger = logging.getLogger(__name__)

_FLUSH_SECONDS = 1.0
_WAKE_AT = 2048  # records; writing earlier than every second keeps a burst from piling up
_MOST_WAITING = 200_000
_WRITING = frozenset({"POST", "PUT", "PATCH"})


class _Record(NamedTuple):
    """What is kept of a request until it is written; never its body."""

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
    written: Any  # the object a write was answered with, decoded or as bytes


class AuditLog:
    """Appends to ``path``. When the file reaches ``rotate_bytes`` it becomes ``path.1``, the one before ``path.2`` and
    so on, of which ``keep`` remain. Raises ``OSError`` if the file cannot be opened to begin with."""

    def __init__(
        self, path: Path, *, rotate_bytes: int = 100 * 1024 * 1024, keep: int = 5, clock: Clock | None = None
    ) -> None:
        self.path = path
        self._overflowed = 0  # counted where requests are served
        self._rotate_bytes = rotate_bytes
        self._keep = keep
        self._clock = clock or SystemClock()
        self._waiting: deque[_Record] = deque()
        self._wake = threading.Event()
        self._closing = False
        self._writing = threading.Lock()  # guards everything below
        self._refused = 0  # counted where lines are written
        self._file = -1
        self._size = 0
        self._torn = False  # the last write stopped inside a line
        self._open()
        self._thread = threading.Thread(target=self._run, name="audit log", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Records that will never be written."""
        return self._overflowed + self._refused

    def record(self, turn: Turn, status: int, problem: str, seconds: float) -> None:
        if len(self._waiting) >= _MOST_WAITING:
            self._overflowed += 1
            return
        request, response = turn.request, turn.response
        written = None
        if request.method in _WRITING and response is not None:
            written = response.object if response.object is not None else response.encoded
        self._waiting.append(
            _Record(
                self._clock.now(),
                seconds,
                turn.audit_id,
                turn.caller,
                request.user,
                request.method,
                request.path,
                request.query,
                request.headers.get("user-agent", ""),
                request.source,
                status,
                turn.sent,
                problem,
                written,
            )
        )
        if len(self._waiting) >= _WAKE_AT:
            self._wake.set()

    def flush(self) -> None:
        """Write what has been recorded so far."""
        with self._writing:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), _WAKE_AT))]
                self._append([_line(record) for record in batch])

    def close(self) -> None:
        """Write the rest and let go of the file."""
        self._closing = True
        self._wake.set()
        self._thread.join()
        self.flush()
        with self._writing:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(_FLUSH_SECONDS)
            self._wake.clear()
            self.flush()

    def _append(self, lines: list[bytes]) -> None:
        try:
            if self._file < 0:
                self._open()
            if self._size >= self._rotate_bytes:
                self._rotate()
            data = b"".join(lines)
            self._write(b"\n" + data if self._torn else data)
        except OSError as error:
            if not self._refused:
                logger.warning("cannot write the audit log %s, records are being dropped: %s", self.path, error)
            self._refused += len(lines)
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = os.write(self._file, view)
            self._size += written
            self._torn = view[written - 1] != ord("\n")
            view = view[written:]

    def _open(self) -> None:
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._file).st_size

    def _rotate(self) -> None:
        os.close(self._file)
        self._file = -1
        for number in range(self._keep, 0, -1):
            older = self._numbered(number - 1)
            if older.exists():
                older.replace(self._numbered(number))
        if self._keep == 0:
            self.path.unlink(missing_ok=True)
        self._open()
        self._torn = False

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}") if number else self.path


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
    told = {key: value for key, value in entry.items() if value != "" and value != [] and value is not False}
    return orjson.dumps(told) + b"\n"


def _decoded(written: Any) -> Any:
    try:
        return orjson.loads(written) if isinstance(written, bytes) else written
    except orjson.JSONDecodeError:
        return None


def _name(written: Any) -> str:
    """The name a create ended up with; the path does not have it."""
    try:
        name = written["metadata"]["name"]
    except (KeyError, TypeError):
        return ""
    return name if isinstance(name, str) else ""


def _owner(written: Any) -> str:
    """Whose the object is after the write, as ``Kind/name``: without it nobody could tell a binding from any patch."""
    try:
        references = written["metadata"]["ownerReferences"]
        return next(f"{each['kind']}/{each['name']}" for each in references if each.get("controller"))
    except (KeyError, TypeError, StopIteration):
        return ""


def _ready(written: Any) -> dict[str, str]:
    """The Ready condition after the write, empty if the object has none."""
    try:
        ready: dict[str, str] = find_condition(written["status"]["conditions"], READY) or {}
    except (KeyError, TypeError):
        return {}
    return ready
