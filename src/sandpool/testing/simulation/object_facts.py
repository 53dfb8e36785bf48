"""Accessors for API objects used by the invariants, independent of the controllers' code."""

from __future__ import annotations

from sandpool.api.resource import Object, SharedObject


def condition(object: SharedObject, type: str) -> Object:
    """The condition of a type; empty if the object has none."""
    conditions = (object.get("status") or {}).get("conditions") or []
    return next((each for each in conditions if each["type"] == type), {})


def is_ready(object: SharedObject) -> bool:
    return condition(object, "Ready").get("status") == "True"


def is_deleting(object: Object) -> bool:
    return bool(object["metadata"].get("deletionTimestamp"))


def name_of(object: Object) -> str:
    name: str = object["metadata"]["name"]
    return name


def uid_of(object: SharedObject) -> str:
    uid: str = object["metadata"]["uid"]
    return uid


def owner_uid(object: Object) -> str:
    """The UID of an object's controlling owner; empty if it has none."""
    owners = object["metadata"].get("ownerReferences") or []
    return next((each["uid"] for each in owners if each.get("controller")), "")


def image(spec: Object) -> str:
    """The image in the spec of a sandbox or template. In a simulation, template revisions differ by image."""
    containers = spec["podTemplate"]["spec"]["containers"]
    image: str = containers[0]["image"]
    return image
