"""The objects of an installation, in the order in which they are applied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sandpool.api import kinds
from sandpool.api.resource import Object
from sandpool.api.sandbox_spec import Profile
from sandpool.api.schema.crds import crd
from sandpool.install import apiserver, roles, workload
from sandpool.install.flow import lease_flow
from sandpool.install.names import (
    CONFIG_MAP,
    CONFIG_PATH,
    CONTROLLER,
    CONTROLLER_LABELS,
    CONTROLLER_LEASE_FLOW,
    HEALTH_PORT,
    IMAGE,
    METRICS_PORT,
    NAMESPACE,
    ROUTER,
    ROUTER_ACCOUNT,
    ROUTER_LABELS,
    ROUTER_METRICS_PORT,
    ROUTER_METRICS_SERVICE,
    ROUTER_PORT,
    ROUTER_SERVICE,
    TAG,
)
from sandpool.install.storage import DEFAULT_STORAGE, Storage

# By default the API server does not validate every field of a pod spec. A write of a Sandbox then costs it a third, and
# an invalid pod spec is reported when the pod is created; docs/installing.md has the figures.
DEFAULT_PROFILE: Final[Profile] = "lean"

# The controllers take about 100 MB for a thousand sandboxes and use CPU in bursts. There is no CPU limit, because it
# would throttle exactly those bursts.
_CONTROLLER_RESOURCES: Final[Object] = {
    "requests": {"cpu": "100m", "memory": "256Mi"},
    "limits": {"memory": "1Gi"},
}
_ROUTER_RESOURCES: Final[Object] = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}}


@dataclass(frozen=True, slots=True)
class InstallOptions:
    """The options of an installation. With two replicas one leads and one stands by with warm caches.

    With the storage ``aggregated`` replicas and profile do not matter: there is one process, and it knows every field.
    An empty ``storage_class`` is the default of the cluster.
    """

    image: str = f"{IMAGE}:{TAG}"
    replicas: int = 2
    profile: Profile = DEFAULT_PROFILE
    storage: Storage = DEFAULT_STORAGE
    storage_class: str = ""


def namespace() -> Object:
    return workload.manifest(kinds.NAMESPACE, NAMESPACE, labels={"app.kubernetes.io/name": "sandpool"})


def definitions(choice: InstallOptions) -> list[Object]:
    return [crd(type, choice.profile) for type in kinds.SANDPOOL]


def core(choice: InstallOptions) -> list[Object]:
    """The kinds and the controllers, with either storage."""
    if choice.storage == "aggregated":
        return apiserver.objects(choice.image, choice.storage_class)
    return [*definitions(choice), *controller(choice)]


def controller(choice: InstallOptions) -> list[Object]:
    labels = CONTROLLER_LABELS
    runs = workload.container(
        CONTROLLER,
        choice.image,
        ["controller", "--leader-elect=true"],
        {"metrics": METRICS_PORT, "healthz": HEALTH_PORT},
        workload.probes(),
        _CONTROLLER_RESOURCES,
    )
    return [
        workload.service_account(CONTROLLER, NAMESPACE, labels),
        *roles.cluster_role(CONTROLLER, NAMESPACE, labels, roles.controller_rules(), CONTROLLER),
        *roles.role(CONTROLLER, NAMESPACE, labels, roles.lease_rules(), CONTROLLER),
        lease_flow(CONTROLLER_LEASE_FLOW, NAMESPACE, labels, CONTROLLER),
        workload.network_policy(CONTROLLER, NAMESPACE, labels, internal=[METRICS_PORT, HEALTH_PORT]),
        workload.disruption_budget(CONTROLLER, NAMESPACE, labels),
        workload.service(CONTROLLER, NAMESPACE, labels, "metrics", METRICS_PORT),
        workload.with_config_map(
            workload.deployment(CONTROLLER, NAMESPACE, labels, CONTROLLER, choice.replicas, runs, grace=30),
            CONFIG_MAP,
            CONFIG_PATH,
        ),
    ]


def router(choice: InstallOptions) -> list[Object]:
    labels = ROUTER_LABELS
    runs = workload.container(
        "sandbox-router",
        choice.image,
        ["router", "--authz-mode=tokenreview"],
        {"http": ROUTER_PORT, "metrics": ROUTER_METRICS_PORT, "healthz": HEALTH_PORT},
        workload.probes(),
        _ROUTER_RESOURCES,
    )
    return [
        workload.service_account(ROUTER_ACCOUNT, NAMESPACE, labels),
        *roles.cluster_role(ROUTER_ACCOUNT, NAMESPACE, labels, roles.rules(roles.ROUTER_NEEDS), ROUTER_ACCOUNT),
        # The router's own port may be behind a load balancer outside the cluster; the router asks for a token.
        workload.network_policy(
            ROUTER_ACCOUNT, NAMESPACE, labels, internal=[ROUTER_METRICS_PORT, HEALTH_PORT], public=[ROUTER_PORT]
        ),
        workload.disruption_budget(ROUTER_ACCOUNT, NAMESPACE, labels),
        workload.service(ROUTER_SERVICE, NAMESPACE, labels, "http", ROUTER_PORT),
        workload.service(ROUTER_METRICS_SERVICE, NAMESPACE, labels, "metrics", ROUTER_METRICS_PORT),
        # Requests may continue for half a minute after SIGTERM.
        workload.deployment(ROUTER, NAMESPACE, labels, ROUTER_ACCOUNT, choice.replicas, runs, grace=45),
    ]
