"""What installed objects are called. Other tools look for them by these names (reference: install surfaces)."""

from __future__ import annotations

from typing import Final

from sandpool import __version__

# Where the SDKs look for the router, and people for the controller.
NAMESPACE: Final = "agent-sandbox-system"

CONTROLLER: Final = "agent-sandbox-controller"
# Of all implementations of the controllers that are installed, the one that holds it works.
LEASE: Final = "a3317529.agent-sandbox.x-k8s.io"
CONTROLLER_LEASE_FLOW: Final = f"{CONTROLLER}-lease"
METRICS_PORT: Final = 8080
HEALTH_PORT: Final = 8081  # of the router, too

ROUTER: Final = "sandbox-router-deployment"
ROUTER_SERVICE: Final = "sandbox-router-svc"
# Beside the other, which may be exposed to the world.
ROUTER_METRICS_SERVICE: Final = "sandbox-router-metrics"
ROUTER_ACCOUNT: Final = "sandbox-router"
ROUTER_PORT: Final = 8080
ROUTER_METRICS_PORT: Final = 9090

# There is no registry of ours: whoever builds deploy/Dockerfile gives the image this name or says another.
IMAGE: Final = "sandpool"
TAG: Final = __version__


def labels(app: str, component: str) -> dict[str, str]:
    """``app`` is what selectors use; the others are for people and their tools."""
    return {"app": app, "app.kubernetes.io/name": "sandpool", "app.kubernetes.io/component": component}


CONTROLLER_LABELS: Final = labels(CONTROLLER, "controller")
ROUTER_LABELS: Final = labels("sandbox-router", "router")
