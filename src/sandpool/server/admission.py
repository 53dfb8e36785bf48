"""Reasons to refuse a write that lie outside the object itself: its namespace, and who writes it."""

from __future__ import annotations

from collections.abc import Callable

from sandpool.api.kinds import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, NAMESPACE, ROLE, ROLE_BINDING
from sandpool.api.resource import Object
from sandpool.kube.errors import forbidden
from sandpool.server.auth.escalation import escalation
from sandpool.server.auth.rbac import RbacAuthorizer
from sandpool.server.exchange import User
from sandpool.server.namespaces import check_create
from sandpool.server.requests import RequestInfo
from sandpool.server.resources import Resource
from sandpool.server.store.store import Store

_GRANTING = frozenset(type.group_resource for type in (ROLE, CLUSTER_ROLE, ROLE_BINDING, CLUSTER_ROLE_BINDING))


class Admission:
    def __init__(self, store: Store, authorizer: RbacAuthorizer) -> None:
        self._store = store
        self._authorizer = authorizer

    def check_namespace(self, info: RequestInfo, resource: Resource) -> None:
        """Refuse to create something in a namespace that is not there, or is on its way out."""
        if resource.type.namespaced:
            entry = self._store.head(NAMESPACE.group_resource, ("", info.namespace))
            if entry is not None and b'"Terminating"' not in entry.encoded:
                return
            check_create(entry.decode() if entry is not None else None, info.namespace, resource.type, info.name)

    def guard(self, user: User, resource: Resource) -> Callable[[Object, Object | None], None] | None:
        """Nobody may grant what they do not have. None where there is nothing to grant."""
        if resource.type.group_resource not in _GRANTING:
            return None

        def check(new: Object, old: Object | None) -> None:
            if problems := escalation(user, new, self._authorizer, old):
                raise forbidden(resource.type, new["metadata"].get("name", ""), "\n".join(problems))

        return check
