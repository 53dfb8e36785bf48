"""Service: a name and an address for a set of pods."""

from __future__ import annotations

from typing import Final

from sandpool.api.causes import Cause
from sandpool.api.kinds import SERVICE
from sandpool.api.resource import Object
from sandpool.kube.errors import invalid
from sandpool.server.kinds.allocation import allocate, needs_address, needs_health_check, needs_node_ports
from sandpool.server.kinds.cow import drop, each, fill_absent, fill_empty, inside, put
from sandpool.server.kinds.kind import Cluster, KindRules
from sandpool.server.kinds.service_spec import (
    is_externally_accessible,
    is_headless,
    validate_addresses,
    validate_service_change,
    validate_service_spec,
)

_AFFINITY_SECONDS: Final = 10800


class ServiceRules(KindRules):
    name_format = "label"
    allow_create_on_update = True
    field_labels = frozenset({"spec.clusterIP", "spec.type"})

    def default(self, obj: Object, old: Object | None = None) -> Object:
        obj = fill_absent(obj, {"spec": {}, "status": {"loadBalancer": {}}})
        return obj if old is not None and obj["spec"] is old.get("spec") else inside(obj, "spec", _default_spec)

    def admit(self, obj: Object, old: Object | None, cluster: Cluster) -> Object:
        if old is not None and obj["spec"] is old["spec"]:
            return obj
        spec = _settle(obj["spec"], old["spec"] if old is not None else {})
        if needs_address(spec) and (wrong := list(validate_addresses(spec))):
            raise invalid(SERVICE, obj["metadata"].get("name") or "", wrong)
        return inside(allocate(put(obj, "spec", spec), old, cluster), "spec", _with_families)

    def prepare_create(self, obj: Object) -> Object:
        return {**obj, "status": {"loadBalancer": {}}}

    def validate(self, new: Object, old: Object | None) -> list[Cause]:
        spec = new["spec"]
        if old is None:
            return list(validate_service_spec(spec))
        if spec is old["spec"]:
            return []
        return [*validate_service_change(spec, old["spec"]), *validate_service_spec(spec)]

    def selectable(self, obj: Object) -> dict[str, str]:
        spec = obj.get("spec") or {}
        return {"spec.clusterIP": spec.get("clusterIP") or "", "spec.type": spec.get("type") or ""}


def _default_spec(spec: Object) -> Object:
    spec = fill_empty(spec, {"sessionAffinity": "None", "type": "ClusterIP"})
    if spec["sessionAffinity"] == "None":
        spec = drop(spec, "sessionAffinityConfig")
    elif spec["sessionAffinity"] == "ClientIP":
        config = (spec.get("sessionAffinityConfig") or {}).get("clientIP") or {}
        if config.get("timeoutSeconds") is None:
            spec = {**spec, "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": _AFFINITY_SECONDS}}}
    spec = inside(spec, "ports", lambda ports: each(ports, _default_port))
    if is_externally_accessible(spec):
        spec = fill_empty(spec, {"externalTrafficPolicy": "Cluster"})
    if spec["type"] in ("ClusterIP", "NodePort", "LoadBalancer"):
        spec = fill_absent(spec, {"internalTrafficPolicy": "Cluster"})
    if spec["type"] == "LoadBalancer":
        spec = fill_absent(spec, {"allocateLoadBalancerNodePorts": True})
    return spec


def _default_port(port: Object) -> Object:
    return fill_empty(port, {"protocol": "TCP", "targetPort": port.get("port") or 0})


def _settle(spec: Object, before: Object) -> Object:
    """The spec with what the update did not mean to change, and without what its type has no use for."""
    spec = _settle_addresses(spec, before)
    if not before:
        return spec
    if needs_address(before):
        if needs_address(spec):
            if not spec.get("clusterIP") and before.get("clusterIP"):
                spec = {**spec, "clusterIP": before["clusterIP"], "clusterIPs": before["clusterIPs"]}
        else:
            given_up = ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy")
            spec = drop(spec, *(field for field in given_up if spec.get(field) == before.get(field)))
            if spec.get("internalTrafficPolicy") == before.get("internalTrafficPolicy"):
                spec = drop(spec, "internalTrafficPolicy")
    if needs_node_ports(before):
        spec = _settle_node_ports(spec, before)
    if needs_health_check(before) and not needs_health_check(spec):
        spec = drop(spec, "healthCheckNodePort")
    elif needs_health_check(before) and before.get("healthCheckNodePort"):
        spec = fill_empty(spec, {"healthCheckNodePort": before["healthCheckNodePort"]})
    if before.get("type") == "LoadBalancer" and spec.get("type") != "LoadBalancer":
        spec = drop(spec, "allocateLoadBalancerNodePorts", "loadBalancerClass")
    if is_externally_accessible(before) and not is_externally_accessible(spec):
        spec = drop(spec, "externalTrafficPolicy")
    return spec


def _settle_addresses(spec: Object, before: Object) -> Object:
    """clusterIP and clusterIPs say the same; a client that knows only the first changes only the first."""
    address, addresses = spec.get("clusterIP") or "", spec.get("clusterIPs") or []
    if address and (not addresses or (addresses == before.get("clusterIPs") and address != before.get("clusterIP"))):
        return {**spec, "clusterIPs": [address, *addresses[1:]]}
    if not address and addresses and addresses == before.get("clusterIPs"):
        return drop(spec, "clusterIP", "clusterIPs")
    return spec


def _settle_node_ports(spec: Object, before: Object) -> Object:
    known = {port.get("name"): port.get("nodePort") for port in before.get("ports") or ()}
    if not needs_node_ports(spec):
        kept = [drop(port, "nodePort") if port.get("nodePort") in known.values() else port for port in spec["ports"]]
        return put(spec, "ports", kept)
    taken = {port.get("nodePort") for port in spec.get("ports") or ()}
    ports = [
        fill_empty(port, {"nodePort": known[port.get("name")]})
        if known.get(port.get("name")) and known[port.get("name")] not in taken
        else port
        for port in spec.get("ports") or ()
    ]
    return put(spec, "ports", ports) if ports else spec


def _with_families(spec: Object) -> Object:
    """Which versions of IP a Service speaks. The cluster speaks version 4, a headless Service without pods both."""
    if not needs_address(spec):
        return spec
    if is_headless(spec) and not spec.get("selector") and not spec.get("ipFamilyPolicy"):
        both = {"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv4", "IPv6"]}
        return fill_empty(spec, both)
    return fill_empty(spec, {"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4"]})
