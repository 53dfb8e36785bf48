from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sandpool.api.kinds import CORE_EVENT, EVENT
from sandpool.api.resource import Object

Cells = Callable[..., list[Any]]

COUNTED: Object = {
    "involvedObject": {"kind": "Pod", "name": "p", "fieldPath": "spec.containers{a}"},
    "reason": "Started",
    "type": "Normal",
    "message": "  hello \n",
    "source": {"component": "kubelet", "host": "n1"},
    "firstTimestamp": "2026-11-16T05:00:00Z",
    "lastTimestamp": "2026-11-16T07:00:00Z",
    "count": 4,
}
SERIES: Object = {
    "involvedObject": {"kind": "Pod"},
    "reason": "R",
    "type": "Warning",
    "message": "m",
    "reportingComponent": "ctl",
    "reportingInstance": "ctl-0",
    "eventTime": "2026-11-16T05:30:00.123456Z",
    "series": {"count": 9, "lastObservedTime": "2026-11-16T07:30:00.000000Z"},
}


def test_counted_event_is_printed(cells: Cells) -> None:
    assert cells(CORE_EVENT, COUNTED) == [
        *("60m", "Normal", "Started", "pod/p", "spec.containers{a}", "kubelet, n1", "hello", "3h", 4, "x")
    ]


def test_event_series_is_printed(cells: Cells) -> None:
    assert cells(CORE_EVENT, SERIES) == ["30m", "Warning", "R", "pod", "", "ctl, ctl-0", "m", "149m", 9, "x"]


def test_event_without_times_is_printed(cells: Cells) -> None:
    obj = {"involvedObject": {"kind": "Pod"}, "message": "m", "source": {"component": "only"}}
    assert cells(CORE_EVENT, obj) == ["<unknown>", "", "", "pod", "", "only", "m", "<unknown>", 1, "x"]


def test_events_v1_event_is_printed_like_a_core_event(cells: Cells) -> None:
    renamed = {
        "regarding": COUNTED["involvedObject"],
        "note": COUNTED["message"],
        "deprecatedSource": COUNTED["source"],
        "deprecatedFirstTimestamp": COUNTED["firstTimestamp"],
        "deprecatedLastTimestamp": COUNTED["lastTimestamp"],
        "deprecatedCount": COUNTED["count"],
        "reason": "Started",
        "type": "Normal",
    }
    assert cells(EVENT, renamed) == cells(CORE_EVENT, COUNTED)
    controller = {**SERIES, "reportingController": "ctl", "reportingComponent": None}
    assert cells(EVENT, controller) == cells(CORE_EVENT, SERIES)
