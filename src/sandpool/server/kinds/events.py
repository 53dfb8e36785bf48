"""Event, in both of its API groups.

The groups name fields differently: ``involvedObject`` of the core group is ``regarding`` in events.k8s.io. Events are
stored in the form of the core group.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sandpool.api.causes import Cause, immutable, invalid, required
from sandpool.api.resource import Object
from sandpool.server import names
from sandpool.server.kinds.copy_on_write import fill_absent
from sandpool.server.kinds.strategy import KindStrategy

# Field names of the core group and of events.k8s.io, where they differ.
_RENAMED: Final = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}
_RENAMED_BACK: Final = {new: old for old, new in _RENAMED.items()}
# Fields that events.k8s.io omits when they are empty, and the core group does not.
_SPELT_OUT: Final = frozenset({"involvedObject", "reportingComponent", "reportingInstance"})
_CORE_DEFAULTS: Final = {
    "involvedObject": {},
    "source": {},
    "reportingComponent": "",
    "reportingInstance": "",
}
# Times are always present; null if not set.
_CORE_TIMES: Final = ("firstTimestamp", "lastTimestamp", "eventTime")
_TIMES: Final = ("eventTime", "deprecatedFirstTimestamp", "deprecatedLastTimestamp")

_OBJECT_FIELDS: Final = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_FIXED: Final = (
    "involvedObject",
    "reason",
    "message",
    "source",
    "firstTimestamp",
    "lastTimestamp",
    "count",
    "type",
    "eventTime",
    "action",
    "related",
    "reportingComponent",
    "reportingInstance",
)


def to_core(event: Object) -> Object:
    """Convert an event from events.k8s.io to the core group."""
    core = dict(zip(map(_RENAMED_BACK.get, event, event), event.values(), strict=True))
    return _fill_core({**core, "apiVersion": "v1"})


def from_core(event: Object) -> Object:
    """Convert an event from the core group to events.k8s.io."""
    names = map(_RENAMED.get, event, event)
    new = {name: event[key] for key, name in zip(event, names, strict=True) if event[key] or key not in _SPELT_OUT}
    return _fill_times({**fill_absent(new, {"deprecatedSource": {}}), "apiVersion": "events.k8s.io/v1"}, _TIMES)


def _fill_core(event: Object) -> Object:
    return _fill_times(fill_absent(event, _CORE_DEFAULTS), _CORE_TIMES)


def _fill_times(event: Object, times: tuple[str, ...]) -> Object:
    missing = {field: None for field in times if field not in event}
    return {**event, **missing} if missing else event


def _validate(event: Object, controller_field: str) -> Iterator[Cause]:
    """Validate what both groups have in common."""
    namespace = event["metadata"].get("namespace") or ""
    about = event["involvedObject"].get("namespace") or ""
    mismatch = invalid("involvedObject.namespace", about, "does not match event.namespace")
    if not event.get("eventTime"):
        # An event without eventTime predates events.k8s.io: only its namespace is validated.
        if namespace != about if about else namespace not in ("", "default"):
            yield mismatch
        return
    if not about and namespace not in ("default", "kube-system"):
        yield mismatch
    controller = event["reportingComponent"]
    if not controller:
        yield required(controller_field)
    yield from (invalid(controller_field, controller, why) for why in names.qualified_name(controller))
    limits = (("reportingInstance", 128, True), ("action", 128, True), ("reason", 128, True), ("message", 1024, False))
    for field, limit, needed in limits:
        value = event.get(field) or ""
        if needed and not value:
            yield required(field)
        if len(value.encode()) > limit:
            yield invalid(field, "", f"can have at most {limit} characters")


def _validate_new(event: Object) -> Iterator[Cause]:
    """Validate what events.k8s.io requires of a new event in addition."""
    yield from _validate_series(event)
    if not event.get("eventTime"):
        yield required("eventTime")
    if event.get("type") not in ("Normal", "Warning"):
        yield invalid("type", "", f"has invalid value: {event.get('type') or ''}")
    for field in ("firstTimestamp", "lastTimestamp", "count", "source"):
        if event.get(field):
            yield invalid(field, "", "needs to be unset")


def _validate_series(event: Object) -> Iterator[Cause]:
    series = event.get("series")
    if series is None:
        return
    if (series.get("count") or 0) < 2:
        yield invalid("series.count", "", "should be at least 2")
    if not series.get("lastObservedTime"):
        yield required("series.lastObservedTime")


class CoreEventStrategy(KindStrategy):
    allow_create_on_update = True
    field_labels = frozenset(
        {*(f"involvedObject.{field}" for field in _OBJECT_FIELDS), "reason", "reportingComponent", "source", "type"}
    )

    def default(self, obj: Object, old: Object | None = None) -> Object:
        return _fill_core(obj)

    def validate(self, new: Object, old: Object | None) -> list[Cause]:
        return list(_validate(new, "reportingComponent"))

    def selectable_fields(self, obj: Object) -> dict[str, str]:
        about, component = obj.get("involvedObject") or {}, obj.get("reportingComponent") or ""
        return {
            **{f"involvedObject.{field}": about.get(field) or "" for field in _OBJECT_FIELDS},
            "reason": obj.get("reason") or "",
            "reportingComponent": component,
            "source": (obj.get("source") or {}).get("component") or component,
            "type": obj.get("type") or "",
        }


class EventStrategy(KindStrategy):
    allow_create_on_update = True
    field_labels = frozenset(
        {*(f"regarding.{field}" for field in _OBJECT_FIELDS), "reason", "reportingController", "type"}
    )

    def default(self, obj: Object, old: Object | None = None) -> Object:
        return _fill_times(fill_absent(obj, {"deprecatedSource": {}}), _TIMES)

    def validate(self, new: Object, old: Object | None) -> list[Cause]:
        event = to_core(new)
        found = list(_validate(event, "reportingController"))
        if old is None:
            return [*found, *_validate_new(event)]
        before = to_core(old)
        if event.get("series") != before.get("series"):
            found += _validate_series(event)
        changed = [field for field in _FIXED if event.get(field) != before.get(field)]
        return [*found, *(immutable(_name(field), event.get(field)) for field in changed)]

    def selectable_fields(self, obj: Object) -> dict[str, str]:
        about = obj.get("regarding") or {}
        return {
            **{f"regarding.{field}": about.get(field) or "" for field in _OBJECT_FIELDS},
            "reason": obj.get("reason") or "",
            "reportingController": obj.get("reportingController") or "",
            "type": obj.get("type") or "",
        }


def _name(field: str) -> str:
    """The name of a field in messages: kube-apiserver uses the core group's names for both groups, but for one."""
    return "reportingController" if field == "reportingComponent" else field
