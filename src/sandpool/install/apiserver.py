"""The objects of the storage ``aggregated``: one process that serves our kinds behind kube-apiserver and runs all
controllers, with the objects on a volume instead of in etcd.

There are no CustomResourceDefinitions. Two APIServices tell kube-apiserver to pass requests for the two groups on; the
process adds the CA of its certificate to them. A StatefulSet of one, because there is one writer: a second copy would
wait for the lease.
"""

from __future__ import annotations

from typing import Any, Final

from sandpool.api import kinds
from sandpool.api.kinds import API_SERVICE, API_SERVICES, ROLE, ROLE_BINDING, STATEFUL_SET
from sandpool.api.resource import Object
from sandpool.controllers.preflight import Permission
from sandpool.install import roles, workload
from sandpool.install.flow import lease_flow
from sandpool.install.names import (
    APISERVER,
    APISERVER_DATA,
    APISERVER_LABELS,
    APISERVER_LEASE_FLOW,
    APISERVER_PORT,
    CONFIG_MAP,
    CONFIG_PATH,
    CONTROLLER,
    CONTROLLER_LABELS,
    HEALTH_PORT,
    METRICS_PORT,
    NAMESPACE,
)
from sandpool.server.aggregated.storage_move import RECORD

#: A sandbox with its claim takes some 10 KB. A restore keeps the former database beside the new one, so half of this is
#: room for more objects than the memory limit allows.
VOLUME_SIZE: Final = "10Gi"
# The store keeps all objects in memory, about 10 KB for a sandbox with its claim, and the caches of the controllers
# have a part of each again. So this is the tighter bound: fewer than 200,000 sandboxes with claims.
_RESOURCES: Final[Object] = {
    "requests": {"cpu": "250m", "memory": "512Mi"},
    "limits": {"memory": "2Gi"},
}
# Where kube-apiserver ranks groups of custom resources, too.
_GROUP_PRIORITY: Final = 1000
_VERSION_PRIORITY: Final = 100
# Of the cluster itself.
_SYSTEM: Final = "kube-system"
_VOLUME: Final = "data"
_SERVICE_PORT: Final = 443
# The record of a move of the storage, which the process follows and reports in.
_MOVE_RULE: Final[Object] = {
    "apiGroups": [""],
    "resources": ["configmaps"],
    "verbs": ["list", "watch", "patch"],
    "resourceNames": [RECORD],
}
#: Roles that every cluster has: asking what users may do, and reading how kube-apiserver names them.
_AUTH_DELEGATOR: Final = "system:auth-delegator"
_AUTHENTICATION_READER: Final = "extension-apiserver-authentication-reader"


def api_services() -> list[Object]:
    """The objects that make kube-apiserver pass on requests for our groups."""
    service = {"name": APISERVER, "namespace": NAMESPACE, "port": _SERVICE_PORT}
    return [
        workload.manifest(
            API_SERVICE,
            name,
            labels=APISERVER_LABELS,
            spec={
                "group": name.partition(".")[2],
                "version": name.partition(".")[0],
                "groupPriorityMinimum": _GROUP_PRIORITY,
                "versionPriority": _VERSION_PRIORITY,
                "service": service,
            },
        )
        for name in API_SERVICES
    ]


def permissions() -> list[Object]:
    """The service account and what it may do."""
    labels = APISERVER_LABELS
    granted = [
        *roles.controller_rules(),
        *roles.rules([Permission(kinds.NAMESPACE, ("get", "list", "watch"))]),
        *(
            {**rule, "resourceNames": list(API_SERVICES)}
            for rule in roles.rules([Permission(API_SERVICE, ("list", "watch", "patch"))])
        ),
        # Whether there are custom resources, which it must not hide.
        *(
            {**rule, "resourceNames": [each.group_resource for each in kinds.SANDPOOL]}
            for rule in roles.rules([Permission(kinds.CUSTOM_RESOURCE_DEFINITION, ("get",))])
        ),
    ]
    delegator = f"{APISERVER}:{_AUTH_DELEGATOR}"
    reader = roles.bound(ROLE, _AUTHENTICATION_READER, APISERVER, NAMESPACE)
    return [
        workload.service_account(APISERVER, NAMESPACE, labels),
        *roles.cluster_role(APISERVER, NAMESPACE, labels, granted, APISERVER),
        roles.cluster_role_binding(delegator, NAMESPACE, labels, _AUTH_DELEGATOR, APISERVER),
        workload.manifest(ROLE_BINDING, f"{APISERVER}-{_AUTHENTICATION_READER}", _SYSTEM, labels, **reader),
        *roles.role(APISERVER, NAMESPACE, labels, [*roles.lease_rules(), _MOVE_RULE], APISERVER),
    ]


def objects(image: str, storage_class: str = "") -> list[Object]:
    """Everything but the namespace, in the order in which it is applied. An empty class is the cluster's default."""
    labels = APISERVER_LABELS
    metrics = workload.service(CONTROLLER, NAMESPACE, APISERVER_LABELS, "metrics", METRICS_PORT)
    return [
        *permissions(),
        lease_flow(APISERVER_LEASE_FLOW, NAMESPACE, labels, APISERVER),
        # kube-apiserver is no pod in most clusters. Only its certificate gets anything from this port.
        workload.network_policy(
            APISERVER, NAMESPACE, labels, internal=[METRICS_PORT, HEALTH_PORT], public=[APISERVER_PORT]
        ),
        workload.disruption_budget(APISERVER, NAMESPACE, labels),
        workload.service(APISERVER, NAMESPACE, labels, "https", APISERVER_PORT, at=_SERVICE_PORT),
        # The monitors of the controllers find this one.
        {**metrics, "metadata": {**metrics["metadata"], "labels": CONTROLLER_LABELS}},
        workload.with_config_map(_stateful_set(image, storage_class), CONFIG_MAP, CONFIG_PATH),
        *api_services(),
    ]


def _stateful_set(image: str, storage_class: str) -> Object:
    runs = workload.container(
        APISERVER,
        image,
        ["apiserver"],
        {"https": APISERVER_PORT, "metrics": METRICS_PORT, "healthz": HEALTH_PORT},
        # Requests are refused from its start until the probe finds it ready, so it looks often.
        workload.probes(ready_seconds=1),
        _RESOURCES,
    )
    runs = {**runs, "volumeMounts": [{"name": _VOLUME, "mountPath": APISERVER_DATA}]}
    # The group owns the volume, so that the unprivileged user can write to it.
    security = {**workload.POD_SECURITY, "fsGroup": workload.USER, "fsGroupChangePolicy": "OnRootMismatch"}
    claim: dict[str, Any] = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": VOLUME_SIZE}}}
    if storage_class:
        claim["storageClassName"] = storage_class
    return workload.manifest(
        STATEFUL_SET,
        APISERVER,
        NAMESPACE,
        APISERVER_LABELS,
        spec={
            "replicas": 1,
            # By default, a pod that never gets ready would keep an update that mends it from replacing it.
            "podManagementPolicy": "Parallel",
            "serviceName": APISERVER,
            "selector": {"matchLabels": workload.selector(APISERVER_LABELS)},
            "template": {
                "metadata": {"labels": APISERVER_LABELS},
                "spec": {
                    "serviceAccountName": APISERVER,
                    "securityContext": security,
                    "terminationGracePeriodSeconds": 45,
                    "containers": [runs],
                },
            },
            "volumeClaimTemplates": [{"metadata": {"name": _VOLUME}, "spec": claim}],
        },
    )
