"""Kinds of the Gateway API by which clients find the router, as far as the router needs them.

On Kubernetes the provider of Gateways installs them. These definitions validate the fields that the router reads and
preserve all others, so manifests written for other Gateways apply unchanged.
"""

from __future__ import annotations

from typing import Final

from sandpool.api.kinds import CUSTOM_RESOURCE_DEFINITION
from sandpool.api.resource import Object, ResourceType

GROUP: Final = "gateway.networking.k8s.io"
GATEWAY_CLASS: Final = ResourceType(
    GROUP,
    "v1",
    "GatewayClass",
    "gatewayclasses",
    namespaced=False,
    short_names=("gc",),
    subresources=frozenset({"status"}),
)
GATEWAY: Final = ResourceType(
    GROUP, "v1", "Gateway", "gateways", short_names=("gtw",), subresources=frozenset({"status"})
)
HTTP_ROUTE: Final = ResourceType(GROUP, "v1", "HTTPRoute", "httproutes", subresources=frozenset({"status"}))
KINDS: Final = (GATEWAY_CLASS, GATEWAY, HTTP_ROUTE)

#: The GatewayClass of Gateways that this router implements, and the name of its controller.
CLASS_NAME: Final = "sandpool"
CONTROLLER_NAME: Final = "sandpool.dev/router"

_OPEN: Final = {"x-kubernetes-preserve-unknown-fields": True}
_ADDRESS: Final = {
    "type": "object",
    "required": ["value"],
    "properties": {"type": {"type": "string"}, "value": {"type": "string"}},
}
_LISTENER: Final = {
    "type": "object",
    "required": ["name", "port", "protocol"],
    "properties": {
        "name": {"type": "string"},
        "port": {"type": "integer", "minimum": 1, "maximum": 65535},
        "protocol": {"type": "string"},
    },
    **_OPEN,
}
_SPECS: Final[dict[ResourceType, Object]] = {
    GATEWAY_CLASS: {
        "type": "object",
        "required": ["controllerName"],
        "properties": {"controllerName": {"type": "string"}},
        **_OPEN,
    },
    GATEWAY: {
        "type": "object",
        "required": ["gatewayClassName", "listeners"],
        "properties": {
            "gatewayClassName": {"type": "string"},
            "listeners": {"type": "array", "minItems": 1, "items": _LISTENER},
        },
        **_OPEN,
    },
    HTTP_ROUTE: {"type": "object", **_OPEN},
}
_STATUSES: Final[dict[ResourceType, Object]] = {
    GATEWAY: {"type": "object", "properties": {"addresses": {"type": "array", "items": _ADDRESS}}, **_OPEN}
}
_COLUMNS: Final[dict[ResourceType, list[Object]]] = {
    GATEWAY_CLASS: [{"name": "Controller", "type": "string", "jsonPath": ".spec.controllerName"}],
    GATEWAY: [
        {"name": "Class", "type": "string", "jsonPath": ".spec.gatewayClassName"},
        {"name": "Address", "type": "string", "jsonPath": ".status.addresses[*].value"},
        {"name": "Programmed", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Programmed")].status'},
    ],
    HTTP_ROUTE: [{"name": "Hostnames", "type": "string", "jsonPath": ".spec.hostnames"}],
}
_AGE: Final = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}


def definition(kind: ResourceType) -> Object:
    """Return the CustomResourceDefinition of one of ``KINDS``."""
    properties = {"spec": _SPECS[kind], "status": _STATUSES.get(kind, {"type": "object", **_OPEN})}
    return {
        "apiVersion": CUSTOM_RESOURCE_DEFINITION.api_version,
        "kind": CUSTOM_RESOURCE_DEFINITION.kind,
        "metadata": {
            "name": kind.group_resource,
            # The API server requires this for groups under k8s.io.
            "annotations": {"api-approved.kubernetes.io": "unapproved, a subset for one router"},
        },
        "spec": {
            "group": kind.group,
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "names": {
                "kind": kind.kind,
                "listKind": kind.list_kind,
                "plural": kind.plural,
                "singular": kind.singular,
                "shortNames": list(kind.short_names),
                "categories": ["gateway-api"],
            },
            "versions": [
                {
                    "name": kind.version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object", "required": ["spec"], "properties": properties}},
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [*_COLUMNS[kind], _AGE],
                }
            ],
        },
    }


def gateway_class() -> Object:
    return {
        "apiVersion": GATEWAY_CLASS.api_version,
        "kind": GATEWAY_CLASS.kind,
        "metadata": {"name": CLASS_NAME},
        "spec": {"controllerName": CONTROLLER_NAME},
    }
