"""Service: a name and an address for a set of pods."""

from __future__ import annotations

from typing import Final

from sandpool.api.causes import Cause
from sandpool.api.kinds import SERVICE
from sandpool.api.resource import Object
from sandpool.kube.errors import invalid
from sandpool.server.kinds.copy_on_write import drop, each, fill_absent, fill_empty, inside, put
from sandpool.server.kinds.service_addresses import needs_address, normalize_addresses, normalize_ip_families
from sandpool.server.kinds.service_allocation import allocate, allocates_node_ports, needs_health_check_port
from sandpool.server.kinds.service_validation import (
    is_externally_accessible,
    validate_load_balancer_status,
    validate_service_annotations,
    validate_service_change,
    validate_service_spec,
)
from sandpool.server.kinds.strategy import ClusterReader, KindStrategy

_AFFINITY_SECONDS: Final = 10800
_NO_STATUS: Final[Object] = {"loadBalancer": {}}
_ADDRESS_FIELDS: Final = ("clusterIP", "clusterIPs")


class ServiceStrategy(KindStrategy):
    name_format = "label"
    allow_create_on_update = True
    field_labels = frozenset({"spec.clusterIP", "spec.type"})

    def default(self, obj: Object, old: Object | None = None) -> Object:
        obj = fill_absent(obj, {"spec": {}, "status": _NO_STATUS})
        if old is None or obj["spec"] is not old.get("spec"):
            obj = inside(obj, "spec", _default_spec)
        if obj["spec"]["type"] == "LoadBalancer":
            obj = inside(obj, "status", _default_status)
        return obj

    def admit(self, obj: Object, old: Object | None, cluster: ClusterReader) -> Object:
        if old is not None and obj["spec"] is old["spec"]:
            return obj
        before = old["spec"] if old is not None else None
        spec = normalize_addresses(obj["spec"], before)
        if before is not None:
            spec = _keep_node_ports(spec, before)
        spec, wrong = normalize_ip_families(spec, before)
        if wrong:
            raise invalid(SERVICE, obj["metadata"].get("name") or "", wrong)
        return allocate(put(obj, "spec", spec), old, cluster)

    def prepare_create(self, obj: Object) -> Object:
        return inside({**obj, "status": _NO_STATUS}, "spec", _without_inner_policy)

    def prepare_update(self, new: Object, old: Object) -> Object:
        if new["spec"] is old["spec"]:
            return new
        new = inside(new, "spec", lambda spec: _without_inner_policy(_drop_unused_fields(spec, old["spec"])))
        return new if new["spec"]["type"] == "LoadBalancer" else put(new, "status", {**new["status"], **_NO_STATUS})

    def validate(self, new: Object, old: Object | None) -> list[Cause]:
        found = list(validate_service_annotations(new, old))
        if old is None:
            return [*found, *validate_service_spec(new["spec"], {})]
        if new["spec"] is old["spec"]:
            return found
        spec, before = new["spec"], old["spec"]
        return [*found, *validate_service_change(spec, before), *validate_service_spec(spec, before)]

    def validate_status(self, new: Object, old: Object) -> list[Cause]:
        return list(validate_load_balancer_status(new, old))

    def selectable_fields(self, obj: Object) -> dict[str, str]:
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


def _default_status(status: Object) -> Object:
    return inside(
        status,
        "loadBalancer",
        lambda balancer: inside(balancer, "ingress", lambda points: each(points, _default_ingress)),
    )


def _default_ingress(point: Object) -> Object:
    return fill_absent(point, {"ipMode": "VIP"}) if point.get("ip") else point


def _keep_node_ports(spec: Object, before: Object) -> Object:
    """Keep the node ports that an update of the same type leaves out."""
    if allocates_node_ports(before) and allocates_node_ports(spec):
        had = {port.get("name"): port.get("nodePort") for port in before.get("ports") or ()}
        taken = {port.get("nodePort") for port in spec.get("ports") or ()}

        def keep(port: Object) -> Object:
            number = had.get(port.get("name"))
            return fill_empty(port, {"nodePort": number}) if number and number not in taken else port

        spec = inside(spec, "ports", lambda ports: each(ports, keep))
    if needs_health_check_port(before) and needs_health_check_port(spec):
        spec = fill_empty(spec, {"healthCheckNodePort": before["healthCheckNodePort"]})
    return spec


def _drop_unused_fields(spec: Object, before: Object) -> Object:
    """Drop unchanged fields that the new type does not use. Changed ones stay, for validation to report."""

    def unchanged(*fields: str) -> bool:
        return all(spec.get(field) == before.get(field) for field in fields)

    if needs_address(before) and not needs_address(spec):
        if unchanged(*_ADDRESS_FIELDS):
            spec = drop(spec, *_ADDRESS_FIELDS)
        spec = drop(spec, *(field for field in ("ipFamilies", "ipFamilyPolicy") if unchanged(field)))
    if _has_node_ports(before) and not _has_node_ports(spec):
        known = {port.get("nodePort") for port in before.get("ports") or ()}
        if {port["nodePort"] for port in spec.get("ports") or () if port.get("nodePort")} <= known:
            spec = inside(spec, "ports", lambda ports: each(ports, lambda port: drop(port, "nodePort")))
    if needs_health_check_port(before) and not needs_health_check_port(spec) and unchanged("healthCheckNodePort"):
        spec = drop(spec, "healthCheckNodePort")
    if before["type"] == "LoadBalancer" and spec["type"] != "LoadBalancer":
        balanced = ("allocateLoadBalancerNodePorts", "loadBalancerClass")
        spec = drop(spec, *(field for field in balanced if unchanged(field)))
    if is_externally_accessible(before) and not is_externally_accessible(spec) and unchanged("externalTrafficPolicy"):
        spec = drop(spec, "externalTrafficPolicy")
    return spec


def _has_node_ports(spec: Object) -> bool:
    return spec["type"] in ("NodePort", "LoadBalancer")


def _without_inner_policy(spec: Object) -> Object:
    """Drop internalTrafficPolicy of an ExternalName Service, as kube-apiserver does."""
    shown = needs_address(spec) or spec.get("internalTrafficPolicy") not in ("Cluster", "Local")
    return spec if shown else drop(spec, "internalTrafficPolicy")
