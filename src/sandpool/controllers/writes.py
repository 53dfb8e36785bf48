"""What a plan asks to be written: one request each, in the namespace of the object the plan is about."""

from __future__ import annotations

from dataclasses import dataclass

from sandpool.api.resource import Object, ResourceType


@dataclass(frozen=True, slots=True)
class Create:
    type: ResourceType
    object: Object


@dataclass(frozen=True, slots=True)
class Patch:
    """A merge patch of what the writer owns."""

    type: ResourceType
    name: str
    body: Object
    subresource: str | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """The UID is a precondition: what was decided about one object must not hit the next one of its name. So is the
    resource version, if given: what was decided about a member of a pool must not hit it once it is claimed."""

    type: ResourceType
    name: str
    uid: str
    resource_version: str = ""


Write = Create | Patch | Delete
