"""The base of all views: identity, labels, annotations and owners of an object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from sys import intern
from typing import Any, Final

from sandpool.api.kinds import SANDPOOL
from sandpool.api.resource import Object, ResourceType, SharedObject
from sandpool.api.views.sharing import Shared
from sandpool.api.views.times import parse_time

_NOTHING: Final[Mapping[str, str]] = {}
_OWN_TYPES: Final = {(type.group, type.kind): type for type in SANDPOOL}
# Members of one pool have the same labels.
_labels: Final = Shared[Mapping[str, str]](4096)


@dataclass(frozen=True, slots=True)
class Owner:
    """The controller reference of an object. It has the owner's group without the version, because old references may
    carry versions that are no longer served."""

    group: str
    kind: str
    name: str
    uid: str
    type: ResourceType | None = field(init=False, compare=False, repr=False)  # if it is one of ours

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", _OWN_TYPES.get((self.group, self.kind)))


@dataclass(frozen=True, slots=True)
class View:
    """The metadata of any object, and the base of all views. Labels and annotations are shared with the object and must
    not be changed."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    generation: int
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    owner: Owner | None
    other_owners: tuple[SharedObject, ...]  # owner references except the controller's, unchanged
    creation_timestamp: datetime | None
    deletion_timestamp: datetime | None

    @property
    def deleting(self) -> bool:
        return self.deletion_timestamp is not None

    def controlled_by(self, owner: View) -> bool:
        """Whether ``owner`` controls the object. Compares UIDs: an object with the same name may be another one."""
        return self.owner is not None and self.owner.uid == owner.uid


def metadata_of(obj: SharedObject) -> dict[str, Any]:
    """The fields of ``View`` for an object."""
    metadata = obj["metadata"]
    namespace, uid, version, generation, labels, annotations, references, created, deleted = map(metadata.get, _FIELDS)
    owner: Owner | None = None
    others: tuple[SharedObject, ...] = ()
    if references:
        first = references[0]
        if len(references) == 1 and first.get("controller"):
            owner = _owner(first["apiVersion"], first["kind"], first["name"], first["uid"])
        else:
            owner, others = _owners(references)
    return {
        "namespace": intern(namespace or ""),
        "name": metadata["name"],
        "uid": uid or "",
        "resource_version": version or "",
        "generation": generation or 0,
        "labels": _labels(labels) if labels else _NOTHING,
        "annotations": annotations or _NOTHING,
        "owner": owner,
        "other_owners": others,
        "creation_timestamp": parse_time(created),
        "deletion_timestamp": parse_time(deleted),
    }


_FIELDS: Final = (
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "labels",
    "annotations",
    "ownerReferences",
    "creationTimestamp",
    "deletionTimestamp",
)


def _owners(references: list[Object]) -> tuple[Owner | None, tuple[SharedObject, ...]]:
    owner: Owner | None = None
    others: list[Object] = []
    for reference in references:
        if owner is None and reference.get("controller"):
            owner = _owner(reference["apiVersion"], reference["kind"], reference["name"], reference["uid"])
        else:
            others.append(reference)
    return owner, tuple(others)


@lru_cache(4096)
def _owner(api_version: str, kind: str, name: str, uid: str) -> Owner:
    """The members of a pool have one owner, and so have all states of an object."""
    return Owner(intern(api_version.rpartition("/")[0]), intern(kind), name, uid)


def controller_reference(type: ResourceType, owner: View) -> Object:
    """The controller reference to ``owner``. With ``blockOwnerDeletion`` a foreground deletion of the owner waits for
    the dependent."""
    return {
        "apiVersion": type.api_version,
        "kind": type.kind,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def adopted_by(child: View, type: ResourceType, owner: View) -> list[SharedObject]:
    """The owner references of a child after its adoption by ``owner``. Includes the other owners, because a merge patch
    replaces the whole list."""
    others = [reference for reference in child.other_owners if reference["uid"] != owner.uid]
    return [*others, controller_reference(type, owner)]
