"""Admission by user: refuses writes of RBAC objects that would escalate the privileges of the writer."""

from __future__ import annotations

from collections.abc import Callable

from sandpool.api.kinds import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, ROLE, ROLE_BINDING
from sandpool.api.resource import Object
from sandpool.kube.errors import forbidden
from sandpool.server.auth.escalation import escalation
from sandpool.server.auth.rbac import RbacAuthorizer
from sandpool.server.request.messages import User
from sandpool.server.resources import Resource

_GRANTING = frozenset(type.group_resource for type in (ROLE, CLUSTER_ROLE, ROLE_BINDING, CLUSTER_ROLE_BINDING))


class Admission:
    def __init__(self, authorizer: RbacAuthorizer) -> None:
        self._authorizer = authorizer

    def guard(self, user: User, resource: Resource) -> Callable[[Object, Object | None], None] | None:
        """Return the escalation check for writes of this resource; None for resources that grant no permissions."""
        if resource.type.group_resource not in _GRANTING:
            return None

        def check(new: Object, old: Object | None) -> None:
            if problems := escalation(user, new, self._authorizer, old):
                raise forbidden(resource.type, new["metadata"].get("name", ""), "\n".join(problems))

        return check
