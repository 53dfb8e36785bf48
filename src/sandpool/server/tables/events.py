"""The printer of Events of both API groups."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sandpool.api.resource import Object
from sandpool.server.tables.age import age
from sandpool.server.tables.printer import Printer, TableColumn, name_of, value_at, wide


def _cells(event: Object, now: datetime) -> list[Any]:
    about = event.get("involvedObject") or event.get("regarding") or {}
    first = event.get("firstTimestamp") or event.get("deprecatedFirstTimestamp") or event.get("eventTime")
    last = event.get("lastTimestamp") or event.get("deprecatedLastTimestamp") or first
    count = event.get("count") or event.get("deprecatedCount") or 1
    if series := event.get("series"):
        last, count = series.get("lastObservedTime"), series.get("count") or 0
    kind, name = (about.get("kind") or "").lower(), about.get("name")
    return [
        age(last, now),
        event.get("type") or "",
        event.get("reason") or "",
        f"{kind}/{name}" if name else kind,
        about.get("fieldPath") or "",
        _source(event),
        (event.get("message") or event.get("note") or "").strip(),
        age(first, now),
        count,
        name_of(event),
    ]


def _source(event: Object) -> str:
    source = event.get("source") or event.get("deprecatedSource") or {}
    controller = event.get("reportingComponent") or event.get("reportingController") or ""
    component = source.get("component") or controller
    host = source.get("host") or value_at(event, "reportingInstance") or ""
    return f"{component}, {host}" if host else component


_PRINTER = Printer(
    (
        TableColumn("Last Seen"),
        TableColumn("Type"),
        TableColumn("Reason"),
        TableColumn("Object"),
        wide("Subobject"),
        wide("Source"),
        TableColumn("Message"),
        wide("First Seen"),
        wide("Count"),
        TableColumn("Name", format="name", priority=1),
    ),
    _cells,
)
PRINTERS = {"events": _PRINTER, "events.events.k8s.io": _PRINTER}
