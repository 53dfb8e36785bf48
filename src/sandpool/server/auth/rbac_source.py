"""Reads RBAC objects from the store for the authorizer."""

from __future__ import annotations

from collections.abc import Iterator

from sandpool.api.kinds import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, ROLE, ROLE_BINDING
from sandpool.api.resource import Object, ResourceType
from sandpool.server.store.entry import Change
from sandpool.server.store.store import Store

_WATCHED = frozenset(type.group_resource for type in (ROLE, CLUSTER_ROLE, ROLE_BINDING, CLUSTER_ROLE_BINDING))


class StoreRuleSource:
    def __init__(self, store: Store) -> None:
        self._store = store
        self.version = 0
        self._changed: set[str] = set()
        store.observe(self._observe)

    def _observe(self, resource: str, change: Change) -> None:
        if resource in _WATCHED:
            self.version += 1
            self._changed.add(change.entry.key[0])

    def take_changed(self) -> set[str]:
        changed, self._changed = self._changed, set()
        return changed

    def _objects(self, type: ResourceType, namespace: str | None = None) -> Iterator[Object]:
        return (entry.decode() for entry in self._store.scan(type.group_resource, namespace))

    def cluster_roles(self) -> Iterator[Object]:
        return self._objects(CLUSTER_ROLE)

    def cluster_role_bindings(self) -> Iterator[Object]:
        return self._objects(CLUSTER_ROLE_BINDING)

    def roles(self, namespace: str) -> Iterator[Object]:
        return self._objects(ROLE, namespace)

    def role_bindings(self, namespace: str) -> Iterator[Object]:
        return self._objects(ROLE_BINDING, namespace)
