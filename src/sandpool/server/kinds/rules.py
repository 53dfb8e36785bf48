"""Which rules a kind follows: the table of the built-in kinds."""

from __future__ import annotations

from sandpool.api.resource import ResourceType
from sandpool.server.kinds.claims import PersistentVolumeClaimRules
from sandpool.server.kinds.crds import CustomResourceDefinitionRules
from sandpool.server.kinds.events import CoreEventRules, EventRules
from sandpool.server.kinds.kind import Cluster, KindRules
from sandpool.server.kinds.namespaces import NamespaceRules
from sandpool.server.kinds.pods import PodRules
from sandpool.server.kinds.rbac import ClusterRoleRules, RoleBindingRules, RoleRules
from sandpool.server.kinds.services import ServiceRules

__all__ = ["Cluster", "KindRules", "rules_for"]

_ORDINARY = KindRules()

# By group resource: every version of a kind follows the same rules, because only one form is stored.
_RULES: dict[str, KindRules] = {
    "namespaces": NamespaceRules(),
    "pods": PodRules(),
    "customresourcedefinitions.apiextensions.k8s.io": CustomResourceDefinitionRules(),
    "events": CoreEventRules(),
    "events.events.k8s.io": EventRules(),
    "services": ServiceRules(),
    "persistentvolumeclaims": PersistentVolumeClaimRules(),
    "roles.rbac.authorization.k8s.io": RoleRules(),
    "clusterroles.rbac.authorization.k8s.io": ClusterRoleRules(),
    "rolebindings.rbac.authorization.k8s.io": RoleBindingRules(namespaced=True),
    "clusterrolebindings.rbac.authorization.k8s.io": RoleBindingRules(namespaced=False),
}


def rules_for(type: ResourceType) -> KindRules:
    """The rules of a built-in kind; those of an ordinary kind if nothing is special about it."""
    return _RULES.get(type.group_resource, _ORDINARY)
