"""Ownership of the replica count across the scale subresource.

A write to the scale subresource is a write to a Scale object and is tracked like any other. The managers of the Scale
are those managers of the object that own its replica count; after the write they are copied back.
"""

from __future__ import annotations

from typing import Final

from sandpool.api.resource import Object
from sandpool.server.apply import path_elements
from sandpool.server.apply.fieldset import Path, of
from sandpool.server.apply.managed_fields import entry, insert_sorted, owned_fields, with_owned_fields

SCALE_VERSION: Final = "autoscaling/v1"
_REPLICAS: Final[Path] = ("f:spec", "f:replicas")


def scale_managed_fields(entries: list[Object], path: str) -> list[Object]:
    """Return the managedFields of an object's Scale. ``path`` leads to its replica count, as ``.spec.replicas``."""
    replicas = of(_REPLICAS)
    return [
        {**with_owned_fields(each, replicas), "apiVersion": SCALE_VERSION}
        for each in entries
        if _elements(path) in owned_fields(each)
    ]


def scaled_managed_fields(
    entries: list[Object], scale_entries: list[Object], path: str, api_version: str
) -> list[Object]:
    """Return the managedFields of an object after a write to its Scale, whose own are now ``scale_entries``.

    A new owner of the replica count gets an entry without a time, as in Kubernetes.
    """
    replicas = of(_elements(path))
    owners = {_manager_key(each): each for each in scale_entries if _REPLICAS in owned_fields(each)}
    result: list[Object] = []
    for each in entries:
        fields = owned_fields(each)
        if _elements(path) not in fields or owners.pop(_manager_key(each), None) is not None:
            result.append(each)
        elif fields := fields - replicas:
            result.append(with_owned_fields(each, fields))
    for manager, operation, subresource in owners:
        insert_sorted(result, entry(manager, operation, api_version, subresource, "", replicas))
    return result


def _elements(path: str) -> Path:
    return tuple(map(path_elements.field, path.lstrip(".").split(".")))


def _manager_key(entry: Object) -> tuple[str, str, str]:
    """Identify a manager without the API version, which differs in the Scale."""
    return entry.get("manager", ""), entry["operation"], entry.get("subresource", "")
