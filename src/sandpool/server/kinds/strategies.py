"""Which rules a kind follows: the table of the built-in kinds."""

from __future__ import annotations

from sandpool.api.resource import ResourceType
from sandpool.server.kinds.config_maps_and_secrets import ConfigMapRules, SecretRules
from sandpool.server.kinds.crds import CustomResourceDefinitionRules
from sandpool.server.kinds.daemon_sets import DaemonSetRules
from sandpool.server.kinds.deployments import DeploymentRules
from sandpool.server.kinds.endpoint_slices import EndpointSliceRules
from sandpool.server.kinds.endpoints import EndpointsRules
from sandpool.server.kinds.events import CoreEventRules, EventRules
from sandpool.server.kinds.leases import LeaseRules
from sandpool.server.kinds.namespaces import NamespaceRules
from sandpool.server.kinds.network_policies import NetworkPolicyRules
from sandpool.server.kinds.nodes import NodeRules
from sandpool.server.kinds.persistent_volume_claims import PersistentVolumeClaimRules
from sandpool.server.kinds.persistent_volumes import PersistentVolumeRules
from sandpool.server.kinds.pod_disruption_budgets import PodDisruptionBudgetRules
from sandpool.server.kinds.pods import PodRules
from sandpool.server.kinds.priority_classes import PriorityClassRules
from sandpool.server.kinds.rbac import ClusterRoleRules, RoleBindingRules, RoleRules
from sandpool.server.kinds.replica_sets import ReplicaSetRules
from sandpool.server.kinds.runtime_classes import RuntimeClassRules
from sandpool.server.kinds.service_accounts import ServiceAccountRules
from sandpool.server.kinds.services import ServiceRules
from sandpool.server.kinds.stateful_sets import StatefulSetRules
from sandpool.server.kinds.storage_classes import StorageClassRules
from sandpool.server.kinds.strategy import Cluster, KindRules

__all__ = ["Cluster", "KindRules", "rules_for"]

_ORDINARY = KindRules()

# By group resource: every version of a kind follows the same rules, because only one form is stored.
_RULES: dict[str, KindRules] = {
    "configmaps": ConfigMapRules(),
    "endpoints": EndpointsRules(),
    "events": CoreEventRules(),
    "namespaces": NamespaceRules(),
    "nodes": NodeRules(),
    "persistentvolumeclaims": PersistentVolumeClaimRules(),
    "persistentvolumes": PersistentVolumeRules(),
    "pods": PodRules(),
    "secrets": SecretRules(),
    "serviceaccounts": ServiceAccountRules(),
    "services": ServiceRules(),
    "customresourcedefinitions.apiextensions.k8s.io": CustomResourceDefinitionRules(),
    "daemonsets.apps": DaemonSetRules(),
    "deployments.apps": DeploymentRules(),
    "replicasets.apps": ReplicaSetRules(),
    "statefulsets.apps": StatefulSetRules(),
    "leases.coordination.k8s.io": LeaseRules(),
    "endpointslices.discovery.k8s.io": EndpointSliceRules(),
    "events.events.k8s.io": EventRules(),
    "networkpolicies.networking.k8s.io": NetworkPolicyRules(),
    "runtimeclasses.node.k8s.io": RuntimeClassRules(),
    "poddisruptionbudgets.policy": PodDisruptionBudgetRules(),
    "priorityclasses.scheduling.k8s.io": PriorityClassRules(),
    "storageclasses.storage.k8s.io": StorageClassRules(),
    "roles.rbac.authorization.k8s.io": RoleRules(),
    "clusterroles.rbac.authorization.k8s.io": ClusterRoleRules(),
    "rolebindings.rbac.authorization.k8s.io": RoleBindingRules(namespaced=True),
    "clusterrolebindings.rbac.authorization.k8s.io": RoleBindingRules(namespaced=False),
}


def rules_for(type: ResourceType) -> KindRules:
    """The rules of a built-in kind; those of an ordinary kind if nothing is special about it."""
    return _RULES.get(type.group_resource, _ORDINARY)
