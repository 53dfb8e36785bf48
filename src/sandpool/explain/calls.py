"""Parse logs: calls of the embedded server or of kube-apiserver (audit.k8s.io/v1), and reconciles of controllers.

One file may contain all three kinds of lines, as the embedded server's does.

kube-apiserver's policy decides what a line holds. From the level ``Metadata`` one learns who did what to which object;
from ``RequestResponse`` also what became of it. The embedded server's log is in between: it tells the owner and the
readiness that a write left, and never a body.

With an aggregated API server, a request for our kinds is in two logs: kube-apiserver passes it on, with its audit ID.
It is one call, with the times of kube-apiserver and the facts of our log.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, TypeVar, cast

import orjson

from sandpool.api.conditions import READY, condition_of
from sandpool.api.views.times import parse_time
from sandpool.explain.request import AuditedRequest, request_of_kubernetes, request_of_sandpool

E = TypeVar("E", bound="Call | Reconcile")

_KUBERNETES_GROUP: Final = "audit.k8s.io/"
_ANSWERED: Final = "ResponseComplete"  # other stages repeat the same request
_CREATED: Final = 201
_PASS: Final = b',"pass":"'


class NotAnAuditLog(Exception):
    """The message names the wrong line and the file to pass instead."""


@dataclass(frozen=True, slots=True)
class Call:
    """One answered request, and the state of the object after it; empty where the log does not contain it."""

    request: AuditedRequest
    started: datetime
    seconds: float
    problem: str = ""
    owner: str = ""  # the controller, as ``Kind/name``
    ready: str = ""  # the status of the Ready condition
    ready_reason: str = ""
    audit_id: str = field(default="", compare=False)
    is_of_kubernetes: bool = field(default=False, compare=False)  # whether kube-apiserver logged it

    @property
    def succeeded(self) -> bool:
        return self.request.code < 300

    @property
    def creates(self) -> bool:
        """Whether the object exists since this call. An apply of a name that does not exist is a patch."""
        return self.succeeded and not self.request.subresource and (self.request.verb == "create" or self.is_applied)

    @property
    def is_applied(self) -> bool:
        return self.request.verb in ("patch", "update") and self.request.code == _CREATED

    def owner_of_kind(self, kind: str) -> str:
        """The name of the owner if it has this kind; empty otherwise."""
        found, _, name = self.owner.partition("/")
        return name if found == kind else ""


@dataclass(frozen=True, slots=True)
class Reconcile:
    """One reconcile of one object by a controller."""

    controller: str
    namespace: str
    name: str
    started: datetime
    seconds: float
    requeue_after: float | None = None  # seconds until the next reconcile without a trigger
    problem: str = ""

    @property
    def kind(self) -> str:
        """The kind that the controller reconciles, in the singular. A second controller of a kind has a suffix."""
        return self.controller.partition("-")[0]


def read_calls(lines: Iterable[bytes], *, mentioning: Iterable[str] = ()) -> Iterator[Call]:
    """Yield only the calls, see ``read_entries``."""
    return (entry for entry in read_entries(lines, mentioning=mentioning) if isinstance(entry, Call))


def read_entries(lines: Iterable[bytes], *, mentioning: Iterable[str] = ()) -> Iterator[Call | Reconcile]:
    """Yield the entries of a log; with ``mentioning``, only those that mention one of the names.

    A torn line is skipped: it is being written, or its writer was killed or the disk was full. Raises
    ``NotAnAuditLog`` if the first line is not JSON, or if any line is JSON of another kind.
    """
    names = [name.encode() for name in mentioning]
    wanted = _mentions(names)
    for number, line in enumerate(lines, 1):
        # Nearly every line is about other objects. A substring search is cheaper than the pattern, which costs as much
        # as decoding. The first line is always decoded, to detect files that are not audit logs.
        if number > 1 and wanted is not None and not (any(name in line for name in names) and wanted.search(line)):
            continue
        if not line.strip() or not line.endswith(b"\n"):
            continue
        try:
            decoded = orjson.loads(line)
        except orjson.JSONDecodeError:
            if number == 1:
                raise _complaint(number) from None
            continue
        entry = _entry(decoded, number)
        if entry is not None:
            yield entry


def joined(entries: Iterable[E]) -> list[E]:
    """Make one call of the two that a request has which kube-apiserver passed on.

    Clients may choose the audit ID, also the same one for several requests. So each call is joined with at most one of
    the other log, which must be about the same object.
    """
    found: list[E] = []
    single: defaultdict[tuple[str, ...], deque[int]] = defaultdict(deque)  # indexes of calls without a counterpart
    for entry in entries:
        if isinstance(entry, Call) and entry.audit_id:
            asked = entry.request
            about = entry.audit_id, asked.verb, asked.resource, asked.subresource, asked.namespace
            counterparts = single[*about, str(not entry.is_of_kubernetes)]
            if counterparts:
                at = counterparts.popleft()
                other = found[at]
                assert isinstance(other, Call)
                found[at] = cast(E, _one_call(entry, other) if entry.is_of_kubernetes else _one_call(other, entry))
                continue
            single[*about, str(entry.is_of_kubernetes)].append(len(found))
        found.append(entry)
    return found


def _one_call(outer: Call, inner: Call) -> Call:
    """``outer`` is what kube-apiserver logged about the request, ``inner`` what our API logged."""
    return replace(
        outer,
        request=replace(outer.request, name=outer.request.name or inner.request.name),
        problem=outer.problem or inner.problem,
        owner=inner.owner or outer.owner,
        ready=inner.ready or outer.ready,
        ready_reason=inner.ready_reason if inner.ready else outer.ready_reason,
    )


def is_reconcile(line: bytes) -> bool:
    """Whether a line records a reconcile. No string value can match: its quotes are escaped."""
    return line.startswith(b'{"time":') and _PASS in line


def _mentions(names: Iterable[bytes]) -> re.Pattern[bytes] | None:
    """A pattern that matches the names as values, as the end of ``Kind/name`` and at the start of an event's name."""
    any_of = b"|".join(re.escape(name) for name in names)
    return re.compile(b'["/](?:' + any_of + b')["./]') if any_of else None


def _entry(entry: Any, number: int) -> Call | Reconcile | None:
    try:
        if "pass" in entry:
            return _of_controller(entry)
        if str(entry.get("apiVersion", "")).startswith(_KUBERNETES_GROUP):
            return _of_kubernetes(entry) if entry.get("stage") == _ANSWERED and "responseStatus" in entry else None
        return _of_sandpool(entry)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _complaint(number) from None


def _complaint(number: int) -> NotAnAuditLog:
    return NotAnAuditLog(
        f"line {number} is not a line of an audit log: pass the FILE of `sandpool up --audit-log FILE`, or of "
        "kube-apiserver's --audit-log-path (one JSON object per line)"
    )


def _of_controller(entry: Any) -> Reconcile:
    return Reconcile(
        entry["pass"],
        entry["namespace"],
        entry["name"],
        _moment(entry["time"]),
        entry["ms"] / 1000,
        entry.get("requeueAfter"),
        entry.get("problem", ""),
    )


def _of_sandpool(entry: Any) -> Call:
    return Call(
        request_of_sandpool(entry),
        _moment(entry["time"]),
        entry["latencyMs"] / 1000,
        entry.get("reason", ""),
        entry.get("owner", ""),
        entry.get("ready", ""),
        entry.get("readyReason", ""),
        audit_id=entry.get("id", ""),
    )


def _of_kubernetes(entry: Any) -> Call:
    started = _moment(entry["requestReceivedTimestamp"])
    finished = _moment(entry["stageTimestamp"])
    written = entry.get("responseObject") or {}
    if written.get("kind") == "Status":
        written = {}
    # A log without response bodies may have request bodies. A patch may also be a list of operations.
    if not written and isinstance(body := entry.get("requestObject"), dict):
        written = body
    request = request_of_kubernetes(entry)
    if not request.name:
        # The path of a create does not contain the name.
        request = replace(request, name=(written.get("metadata") or {}).get("name") or "")
    ready = condition_of(written, READY) or {}
    return Call(
        request,
        started,
        (finished - started).total_seconds(),
        entry["responseStatus"].get("message", ""),
        _owner(written),
        ready.get("status", ""),
        ready.get("reason", ""),
        audit_id=entry.get("auditID", ""),
        is_of_kubernetes=True,
    )


def _owner(written: Any) -> str:
    for reference in (written.get("metadata") or {}).get("ownerReferences") or ():
        if reference.get("controller"):
            return f"{reference['kind']}/{reference['name']}"
    return ""


def _moment(text: str) -> datetime:
    moment = parse_time(text)
    if moment is None:
        raise ValueError(f"{text!r} is not a time")
    return moment
