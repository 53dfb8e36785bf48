"""Printers of Services, Endpoints, EndpointSlices and NetworkPolicies."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from sandpool.api.resource import Object
from sandpool.server.tables.printer import (
    AGE,
    NAME,
    NONE,
    UNSET,
    Printer,
    TableColumn,
    age_of,
    labels_text,
    name_of,
    selector_text,
    value_at,
    wide,
)

_SHOWN = 3  # addresses or ports; the others are only counted


def _service(obj: Object, now: datetime) -> list[Any]:
    spec = obj.get("spec") or {}
    return [
        name_of(obj),
        spec.get("type") or "ClusterIP",
        next(iter(spec.get("clusterIPs") or ()), NONE),
        _external(obj),
        ",".join(map(_port_text, spec.get("ports") or ())) or NONE,
        age_of(obj, now),
        labels_text(spec.get("selector")),
    ]


def _external(obj: Object) -> str:
    spec = obj.get("spec") or {}
    type, addresses = spec.get("type") or "ClusterIP", list(spec.get("externalIPs") or ())
    if type == "ExternalName":
        return spec.get("externalName") or ""
    if type == "LoadBalancer":
        ingress = value_at(obj, "status", "loadBalancer", "ingress") or ()
        balancers = {entry.get("ip") or entry.get("hostname") for entry in ingress} - {None, ""}
        return ",".join([*sorted(balancers), *addresses]) or "<pending>"
    return ",".join(addresses) or NONE


def _port_text(port: Object) -> str:
    node_port = f":{port['nodePort']}" if port.get("nodePort") else ""
    return f"{port['port']}{node_port}/{port.get('protocol') or 'TCP'}"


def _endpoints(obj: Object, now: datetime) -> list[Any]:
    subsets = obj.get("subsets") or ()
    found = [text for subset in subsets for text in _subset_texts(subset)]
    return [name_of(obj), _shortened(found) if subsets else NONE, age_of(obj, now)]


def _subset_texts(subset: Object) -> Iterable[str]:
    addresses = [address["ip"] for address in subset.get("addresses") or ()]
    if not subset.get("ports"):
        return addresses
    return [
        f"[{address}]:{port['port']}" if ":" in address else f"{address}:{port['port']}"
        for port in subset["ports"]
        for address in addresses
    ]


def _endpoint_slice(obj: Object, now: datetime) -> list[Any]:
    ports = [str(port.get("port") or port.get("name") or "*") for port in obj.get("ports") or ()]
    addresses = [text for endpoint in obj.get("endpoints") or () for text in endpoint.get("addresses") or ()]
    return [
        name_of(obj),
        obj.get("addressType") or "",
        _shortened(ports) or UNSET,
        _shortened(addresses) or UNSET,
        age_of(obj, now),
    ]


def _shortened(texts: list[str]) -> str:
    shown = ",".join(texts[:_SHOWN])
    return f"{shown} + {len(texts) - _SHOWN} more..." if len(texts) > _SHOWN else shown


def _network_policy(obj: Object, now: datetime) -> list[Any]:
    return [name_of(obj), selector_text(value_at(obj, "spec", "podSelector")) or NONE, age_of(obj, now)]


PRINTERS = {
    "services": Printer(
        (
            NAME,
            TableColumn("Type"),
            TableColumn("Cluster-IP"),
            TableColumn("External-IP"),
            TableColumn("Port(s)"),
            AGE,
            wide("Selector"),
        ),
        _service,
    ),
    "endpoints": Printer((NAME, TableColumn("Endpoints"), AGE), _endpoints),
    "endpointslices.discovery.k8s.io": Printer(
        (NAME, TableColumn("AddressType"), TableColumn("Ports"), TableColumn("Endpoints"), AGE), _endpoint_slice
    ),
    "networkpolicies.networking.k8s.io": Printer((NAME, TableColumn("Pod-Selector"), AGE), _network_policy),
}
