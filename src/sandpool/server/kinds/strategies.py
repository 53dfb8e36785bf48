"""Which rules a kind follows: the table of the built-in kinds."""

from __future__ import annotations

from sandpool.api.resource import ResourceType
from sandpool.server.kinds.config_maps_and_secrets import ConfigMapStrategy, SecretStrategy
from sandpool.server.kinds.crds import CustomResourceDefinitionStrategy
from sandpool.server.kinds.daemon_sets import DaemonSetStrategy
from sandpool.server.kinds.deployments import DeploymentStrategy
from sandpool.server.kinds.endpoint_slices import EndpointSliceStrategy
from sandpool.server.kinds.endpoints import EndpointsStrategy
from sandpool.server.kinds.events import CoreEventStrategy, EventStrategy
from sandpool.server.kinds.leases import LeaseStrategy
from sandpool.server.kinds.namespaces import NamespaceStrategy
from sandpool.server.kinds.network_policies import NetworkPolicyStrategy
from sandpool.server.kinds.nodes import NodeStrategy
from sandpool.server.kinds.persistent_volume_claims import PersistentVolumeClaimStrategy
from sandpool.server.kinds.persistent_volumes import PersistentVolumeStrategy
from sandpool.server.kinds.pod_disruption_budgets import PodDisruptionBudgetStrategy
from sandpool.server.kinds.pods import PodStrategy
from sandpool.server.kinds.priority_classes import PriorityClassStrategy
from sandpool.server.kinds.rbac import ClusterRoleStrategy, RoleBindingStrategy, RoleStrategy
from sandpool.server.kinds.replica_sets import ReplicaSetStrategy
from sandpool.server.kinds.runtime_classes import RuntimeClassStrategy
from sandpool.server.kinds.service_accounts import ServiceAccountStrategy
from sandpool.server.kinds.services import ServiceStrategy
from sandpool.server.kinds.stateful_sets import StatefulSetStrategy
from sandpool.server.kinds.storage_classes import StorageClassStrategy
from sandpool.server.kinds.strategy import ClusterReader, KindStrategy

__all__ = ["ClusterReader", "KindStrategy", "strategy_for"]

_DEFAULT_STRATEGY = KindStrategy()

# By group resource: every version of a kind follows the same rules, because only one form is stored.
_STRATEGIES: dict[str, KindStrategy] = {
    "configmaps": ConfigMapStrategy(),
    "endpoints": EndpointsStrategy(),
    "events": CoreEventStrategy(),
    "namespaces": NamespaceStrategy(),
    "nodes": NodeStrategy(),
    "persistentvolumeclaims": PersistentVolumeClaimStrategy(),
    "persistentvolumes": PersistentVolumeStrategy(),
    "pods": PodStrategy(),
    "secrets": SecretStrategy(),
    "serviceaccounts": ServiceAccountStrategy(),
    "services": ServiceStrategy(),
    "customresourcedefinitions.apiextensions.k8s.io": CustomResourceDefinitionStrategy(),
    "daemonsets.apps": DaemonSetStrategy(),
    "deployments.apps": DeploymentStrategy(),
    "replicasets.apps": ReplicaSetStrategy(),
    "statefulsets.apps": StatefulSetStrategy(),
    "leases.coordination.k8s.io": LeaseStrategy(),
    "endpointslices.discovery.k8s.io": EndpointSliceStrategy(),
    "events.events.k8s.io": EventStrategy(),
    "networkpolicies.networking.k8s.io": NetworkPolicyStrategy(),
    "runtimeclasses.node.k8s.io": RuntimeClassStrategy(),
    "poddisruptionbudgets.policy": PodDisruptionBudgetStrategy(),
    "priorityclasses.scheduling.k8s.io": PriorityClassStrategy(),
    "storageclasses.storage.k8s.io": StorageClassStrategy(),
    "roles.rbac.authorization.k8s.io": RoleStrategy(),
    "clusterroles.rbac.authorization.k8s.io": ClusterRoleStrategy(),
    "rolebindings.rbac.authorization.k8s.io": RoleBindingStrategy(namespaced=True),
    "clusterrolebindings.rbac.authorization.k8s.io": RoleBindingStrategy(namespaced=False),
}


def strategy_for(type: ResourceType) -> KindStrategy:
    """The rules of a built-in kind; those of an ordinary kind if nothing is special about it."""
    return _STRATEGIES.get(type.group_resource, _DEFAULT_STRATEGY)
