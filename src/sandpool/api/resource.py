"""Resource types and keys. All packages identify a kind with ``ResourceType`` and an object of it with ``Key``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote

# A decoded API object. Objects are immutable by convention: a change builds new dicts along the changed path and
# shares the rest (see kube.patches), so references can be kept and compared by identity.
Object = dict[str, Any]

# An object, or a part of one, that other code holds too: what a watch or a view of a cache hands out.
SharedObject = Mapping[str, Any]


class Key(NamedTuple):
    """Namespace and name of an object. Cluster-scoped objects have an empty namespace."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @classmethod
    def of(cls, object: SharedObject) -> Key:
        metadata = object["metadata"]
        return shared_key(metadata.get("namespace") or "", metadata["name"])


#: ``Key(namespace, name)``, made once for the objects that were asked for last: one write needs its key a dozen times.
shared_key = lru_cache(1 << 13)(Key)

_MOST_COLLECTIONS = 1024  # paths that a type remembers
_is_plain = re.compile("[A-Za-z0-9._~-]*").fullmatch


def _segment(text: str) -> str:
    # Almost every name is plain, and this check costs a tenth of quoting.
    return text if _is_plain(text) else quote(text, safe="")


@dataclass(frozen=True)
class ResourceType:
    """One resource of one API version, e.g. ``sandboxes`` of ``agents.x-k8s.io/v1beta1``."""

    group: str  # "" is the core group
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    singular: str = ""  # defaults to the lower-cased kind
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    list_kind: str = ""  # defaults to kind + "List"
    subresources: frozenset[str] = frozenset()  # e.g. {"status", "scale"}
    # Verbs of the main resource in discovery; review kinds support only create.
    verbs: tuple[str, ...] = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
    # What follows from the group, the version and the plural.
    api_version: str = field(init=False, repr=False, compare=False)
    # ``sandboxes.agents.x-k8s.io``; just ``pods`` for the core group. Independent of the version.
    group_resource: str = field(init=False, repr=False, compare=False)
    base_path: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        group, version, plural = self.group, self.version, self.plural
        derived = {
            "singular": self.singular or self.kind.lower(),
            "list_kind": self.list_kind or self.kind + "List",
            "api_version": f"{group}/{version}" if group else version,
            "group_resource": f"{plural}.{group}" if group else plural,
            "base_path": f"/apis/{group}/{version}" if group else f"/api/{version}",
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """The percent-encoded URL path. Without a namespace: the cluster-wide collection."""
        path = self._collections.get(namespace)
        if path is None:
            path = self._collection(namespace)
        if name is not None:
            path += "/" + _segment(name)
            if subresource:
                path += "/" + subresource
        return path

    @cached_property
    def _collections(self) -> dict[str | None, str]:
        """Paths of collections, by namespace."""
        return {}

    def _collection(self, namespace: str | None) -> str:
        path = self.base_path
        if namespace and self.namespaced:
            path += "/namespaces/" + _segment(namespace)
        if len(self._collections) >= _MOST_COLLECTIONS:
            self._collections.clear()
        path = self._collections[namespace] = f"{path}/{self.plural}"
        return path

    def __str__(self) -> str:
        return self.group_resource
