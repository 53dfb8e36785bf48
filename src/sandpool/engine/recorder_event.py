"""An Event about an object, as events.k8s.io/v1 wants it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import datetime

from sandpool.api.events import Happening
from sandpool.api.kinds import EVENT
from sandpool.api.resource import Object
from sandpool.engine.clock import micro_timestamp

# What the API accepts, in bytes.
_LONGEST_NOTE = 1024
_LONGEST_WORD = 128  # of reason, action and reportingInstance
_LONGEST_NAME = 253
# Events live in a namespace; those about objects that do not, live in this one.
_NOWHERE = "default"


@dataclass(frozen=True, slots=True)
class Reference:
    """The object an event is about. Its resourceVersion is for information: the next version is the same object."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""  # empty: cluster-scoped
    uid: str = ""
    resource_version: str = field(default="", compare=False)

    @classmethod
    def to(cls, obj: Object) -> Reference:
        metadata = obj["metadata"]
        return cls(
            obj["apiVersion"],
            obj["kind"],
            metadata["name"],
            metadata.get("namespace", ""),
            metadata.get("uid", ""),
            metadata.get("resourceVersion", ""),
        )

    def spelt_out(self) -> Object:
        fields = {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "namespace": self.namespace,
            "name": self.name,
            "uid": self.uid,
            "resourceVersion": self.resource_version,
        }
        return {name: value for name, value in fields.items() if value}


def event_namespace(regarding: Reference) -> str:
    return regarding.namespace or _NOWHERE


def event_name(regarding: Reference, nanoseconds: int) -> str:
    """The object's name and the time, so that events sort by object and every one has its own name."""
    name = f"{regarding.name}.{nanoseconds:x}"
    return name if len(name) <= _LONGEST_NAME else str(uuid.uuid4())


def new_event(regarding: Reference, happening: Happening, name: str, instance: str, time: datetime) -> Object:
    """``instance`` tells the replicas of a reporter apart."""
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.kind,
        "metadata": {"name": name, "namespace": event_namespace(regarding)},
        "eventTime": micro_timestamp(time),
        "type": happening.type,
        "reason": clipped(happening.reason, _LONGEST_WORD),
        "action": clipped(happening.action, _LONGEST_WORD),
        "note": clipped(happening.note, _LONGEST_NOTE),
        "regarding": regarding.spelt_out(),
        "reportingController": happening.reporter,
        "reportingInstance": clipped(f"{happening.reporter}-{instance}", _LONGEST_WORD),
    }


def series(count: int, last: datetime) -> Object:
    """What is added to an event that happened again; ``count`` includes the first time."""
    return {"series": {"count": count, "lastObservedTime": micro_timestamp(last)}}


def clipped(text: str, limit: int) -> str:
    """At most ``limit`` bytes of it, ending with an ellipsis and never in the middle of a character."""
    data = text.encode(errors="replace")
    if len(data) <= limit:
        return text
    return data[: limit - len("…".encode())].decode(errors="ignore") + "…"
