"""The names of installed objects. Other tools find them by these names (reference: install surfaces)."""

from __future__ import annotations

from typing import Final

from sandpool import __version__

# Where the SDKs look for the router, and users for the controller.
NAMESPACE: Final = "agent-sandbox-system"

CONTROLLER: Final = "agent-sandbox-controller"
# The leader lease, shared by all implementations of the controllers in a cluster.
LEASE: Final = "a3317529.agent-sandbox.x-k8s.io"
CONTROLLER_LEASE_FLOW: Final = f"{CONTROLLER}-lease"
# Made by the operator, if at all. Its key ``allowed-label-domains`` is the file that the controller reads at start.
CONFIG_MAP: Final = "agent-sandbox-config"
CONFIG_PATH: Final = "/etc/sandbox-config"
METRICS_PORT: Final = 8080
HEALTH_PORT: Final = 8081  # the same for the router

ROUTER: Final = "sandbox-router-deployment"
ROUTER_SERVICE: Final = "sandbox-router-svc"
# A separate Service, because the other may be exposed to the internet.
ROUTER_METRICS_SERVICE: Final = "sandbox-router-metrics"
ROUTER_ACCOUNT: Final = "sandbox-router"
ROUTER_PORT: Final = 8080
ROUTER_METRICS_PORT: Final = 9090

# The aggregated API server, with all controllers in it: its StatefulSet, Service and service account.
APISERVER: Final = "agent-sandbox-apiserver"
APISERVER_LEASE_FLOW: Final = f"{APISERVER}-lease"
APISERVER_PORT: Final = 6443
APISERVER_DATA: Final = "/var/lib/sandpool"

# There is no public registry: build deploy/Dockerfile with this name, or pass another one.
IMAGE: Final = "sandpool"
TAG: Final = __version__


def labels(app: str, component: str) -> dict[str, str]:
    """The labels of a component. Selectors use ``app``; the others are informational."""
    return {"app": app, "app.kubernetes.io/name": "sandpool", "app.kubernetes.io/component": component}


CONTROLLER_LABELS: Final = labels(CONTROLLER, "controller")
APISERVER_LABELS: Final = labels(APISERVER, "apiserver")
ROUTER_LABELS: Final = labels("sandbox-router", "router")
