"""What a resource is called on the wire: the one key type for kinds everywhere in the project."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import quote

# A decoded API object. Objects are immutable by convention: whoever changes one builds a new dict along the changed
# path and shares the rest (see kube.patches), so a reference may be kept and compared by identity.
Object = dict[str, Any]


_is_plain = re.compile("[A-Za-z0-9._~-]*").fullmatch


def _segment(text: str) -> str:
    # Nearly every name is plain, and telling so costs a tenth of quoting it.
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
    # Verbs of the main resource as discovery lists them; review kinds can only be created.
    verbs: tuple[str, ...] = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")

    def __post_init__(self) -> None:
        if not self.singular:
            object.__setattr__(self, "singular", self.kind.lower())
        if not self.list_kind:
            object.__setattr__(self, "list_kind", self.kind + "List")

    @cached_property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @cached_property
    def group_resource(self) -> str:
        """``sandboxes.agents.x-k8s.io``; just ``pods`` for the core group. Names the thing whatever the version."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @cached_property
    def base_path(self) -> str:
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """The percent-encoded URL path; a namespace of None is the cluster-wide collection."""
        path = self.base_path
        if namespace and self.namespaced:
            path += "/namespaces/" + _segment(namespace)
        path += "/" + self.plural
        if name is not None:
            path += "/" + _segment(name)
            if subresource:
                path += "/" + subresource
        return path

    def __str__(self) -> str:
        return self.group_resource
