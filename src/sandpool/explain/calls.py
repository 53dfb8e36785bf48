"""What a log tells: calls of the embedded server or of kube-apiserver (audit.k8s.io/v1), and passes of controllers.

Lines of all of them may be in one file, as they are in the embedded server's.

kube-apiserver's policy decides what a line holds. From the level ``Metadata`` one learns who did what to which object;
from ``RequestResponse`` also what became of it. The embedded server's log is in between: it tells the owner and the
readiness that a write left, and never a body.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import orjson

from sandpool.api.conditions import READY, condition_of
from sandpool.api.views.times import parse_time
from sandpool.explain.asked import Asked, asked_of_kubernetes, asked_of_sandpool

_KUBERNETES_GROUP: Final = "audit.k8s.io/"
_ANSWERED: Final = "ResponseComplete"  # the other stages tell of the same request again
_PASS: Final = b',"pass":"'


class NotAnAuditLog(Exception):
    """The message says which line is not what it should be, and what should be given instead."""


@dataclass(frozen=True, slots=True)
class Call:
    """One answered request, and what the log tells about the object afterwards: empty where it tells nothing."""

    asked: Asked
    started: datetime
    seconds: float
    problem: str = ""
    owner: str = ""  # the controller, as ``Kind/name``
    ready: str = ""  # the status of the Ready condition
    ready_reason: str = ""

    @property
    def succeeded(self) -> bool:
        return self.asked.code < 300

    def owner_of_kind(self, kind: str) -> str:
        """The name of the owner if it is of this kind, empty otherwise."""
        found, _, name = self.owner.partition("/")
        return name if found == kind else ""


@dataclass(frozen=True, slots=True)
class Pass:
    """A controller has looked at one object, and done about it what was to be done."""

    controller: str
    namespace: str
    name: str
    started: datetime
    seconds: float
    requeue_after: float | None = None  # seconds until it looks again if nothing happens
    problem: str = ""

    @property
    def kind(self) -> str:
        """What the controller looks at, in the singular. Where two look at one kind, the second is called more."""
        return self.controller.partition("-")[0]


def read_calls(lines: Iterable[bytes], *, mentioning: Iterable[str] = ()) -> Iterator[Call]:
    """The calls alone, see ``read_entries``."""
    return (entry for entry in read_entries(lines, mentioning=mentioning) if isinstance(entry, Call))


def read_entries(lines: Iterable[bytes], *, mentioning: Iterable[str] = ()) -> Iterator[Call | Pass]:
    """What the lines tell, one at a time; of those only that mention one of the names, where names are given.

    A torn line is left out: it is being written, or was when its writer was killed or its disk full. Raises
    ``NotAnAuditLog`` if the first line is no JSON, or any line the JSON of something else.
    """
    names = [name.encode() for name in mentioning]
    wanted = _mentions(names)
    for number, line in enumerate(lines, 1):
        # Nearly every line of a log is about something else, and looking for bytes is cheaper than the pattern, which
        # costs what decoding does. The first line is always decoded, so that what is no audit log is found out.
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


def is_pass(line: bytes) -> bool:
    """Whether a line, of whatever log, is about a pass. No text in it can look like this: its quotes are escaped."""
    return line.startswith(b'{"time":') and _PASS in line


def _mentions(names: Iterable[bytes]) -> re.Pattern[bytes] | None:
    """Finds the names as values, as the end of ``Kind/name`` and at the beginning of an event's name."""
    any_of = b"|".join(re.escape(name) for name in names)
    return re.compile(b'["/](?:' + any_of + b')["./]') if any_of else None


def _entry(entry: Any, number: int) -> Call | Pass | None:
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
        f"line {number} is not a line of an audit log: give what `sandpool up --audit-log FILE` wrote, or the file of "
        "kube-apiserver's --audit-log-path (one JSON object per line)"
    )


def _of_controller(entry: Any) -> Pass:
    return Pass(
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
        asked_of_sandpool(entry),
        _moment(entry["time"]),
        entry["latencyMs"] / 1000,
        entry.get("reason", ""),
        entry.get("owner", ""),
        entry.get("ready", ""),
        entry.get("readyReason", ""),
    )


def _of_kubernetes(entry: Any) -> Call:
    started = _moment(entry["requestReceivedTimestamp"])
    finished = _moment(entry["stageTimestamp"])
    written = entry.get("responseObject") or {}
    if written.get("kind") == "Status":
        written = {}
    # A log without answers may still have what was asked for. A patch may also be a list of operations.
    if not written and isinstance(request := entry.get("requestObject"), dict):
        written = request
    asked = asked_of_kubernetes(entry)
    if not asked.name:
        # The path of a create has no name.
        asked = replace(asked, name=(written.get("metadata") or {}).get("name") or "")
    ready = condition_of(written, READY) or {}
    return Call(
        asked,
        started,
        (finished - started).total_seconds(),
        entry["responseStatus"].get("message", ""),
        _owner(written),
        ready.get("status", ""),
        ready.get("reason", ""),
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
