"""The strategies of the built-in kinds, and those of kinds too small for a module of their own."""

from __future__ import annotations

from collections.abc import Iterator

from sandpool.api.causes import Cause, invalid
from sandpool.api.resource import Object, ResourceType
from sandpool.server.kinds.classes import PriorityClassStrategy, RuntimeClassStrategy, StorageClassStrategy
from sandpool.server.kinds.config_maps_and_secrets import ConfigMapStrategy, SecretStrategy
from sandpool.server.kinds.copy_on_write import drop, each, inside
from sandpool.server.kinds.crds import CustomResourceDefinitionStrategy
from sandpool.server.kinds.daemon_sets import DaemonSetStrategy
from sandpool.server.kinds.deployments import DeploymentStrategy, ReplicaSetStrategy
from sandpool.server.kinds.endpoints import EndpointSliceStrategy, EndpointsStrategy
from sandpool.server.kinds.events import CoreEventStrategy, EventStrategy
from sandpool.server.kinds.namespaces import NamespaceStrategy
from sandpool.server.kinds.network_policies import NetworkPolicyStrategy
from sandpool.server.kinds.nodes import NodeStrategy
from sandpool.server.kinds.persistent_volume_claims import PersistentVolumeClaimStrategy
from sandpool.server.kinds.persistent_volumes import PersistentVolumeStrategy
from sandpool.server.kinds.pod_disruption_budgets import PodDisruptionBudgetStrategy
from sandpool.server.kinds.pods import PodStrategy
from sandpool.server.kinds.rbac import ClusterRoleStrategy, RoleBindingStrategy, RoleStrategy
from sandpool.server.kinds.services import ServiceStrategy
from sandpool.server.kinds.stateful_sets import StatefulSetStrategy
from sandpool.server.kinds.strategy import ClusterReader, KindStrategy

__all__ = ["ClusterReader", "KindStrategy", "strategy_for"]


class LeaseStrategy(KindStrategy):
    allow_create_on_update = True
    allow_unconditional_update = False

    def prepare_create(self, obj: Object) -> Object:
        """Drop the fields of coordinated leader election, a feature gate that is off by default in Kubernetes."""
        return inside(obj, "spec", lambda spec: drop(spec, "strategy", "preferredHolder"))

    def prepare_update(self, new: Object, old: Object) -> Object:
        return self.prepare_create(new)

    def validate(self, new: Object, old: Object | None) -> list[Cause]:
        return list(_validate_lease_spec(new.get("spec") or {}))


def _validate_lease_spec(spec: Object) -> Iterator[Cause]:
    duration, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
    if duration is not None and duration <= 0:
        yield invalid("spec.leaseDurationSeconds", duration, "must be greater than 0")
    if transitions is not None and transitions < 0:
        yield invalid("spec.leaseTransitions", transitions, "must be greater than or equal to 0")


class ServiceAccountStrategy(KindStrategy):
    def prepare_create(self, obj: Object) -> Object:
        return inside(obj, "secrets", lambda secrets: each(secrets, _only_name))

    def prepare_update(self, new: Object, old: Object) -> Object:
        return self.prepare_create(new)


def _only_name(reference: Object) -> Object:
    return reference if reference.keys() <= {"name"} else {key: reference[key] for key in reference if key == "name"}


_DEFAULT_STRATEGY = KindStrategy()

# By group resource: all versions of a kind share a strategy, because only one of them is stored.
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
    """The strategy of a built-in kind; the default strategy if the kind needs no other."""
    return _STRATEGIES.get(type.group_resource, _DEFAULT_STRATEGY)
