"""Validation of Services, except for their addresses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sandpool.api.causes import Cause, duplicate, forbidden, invalid, not_supported, required
from sandpool.api.resource import Object
from sandpool.server import names
from sandpool.server.kinds.containers import PROTOCOLS
from sandpool.server.kinds.ip_addresses import (
    read_address,
    validate_address,
    validate_endpoint_address,
    validate_range,
)
from sandpool.server.kinds.metadata import validate_labels
from sandpool.server.kinds.probes import validate_port
from sandpool.server.kinds.service_addresses import is_headless, needs_address
from sandpool.server.kinds.service_allocation import needs_health_check_port

_TYPES: Final = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
_MOST_AFFINITY_SECONDS: Final = 86400
_DISTRIBUTIONS: Final = ("PreferClose", "PreferSameZone", "PreferSameNode")
_PORT_RANGE: Final = "must be between 1 and 65535, inclusive"
_ONLY_BALANCED: Final = "may only be used when `type` is 'LoadBalancer'"
_ADDRESS_MODES: Final = ("Proxy", "VIP")

_RANGES_ANNOTATION: Final = "service.beta.kubernetes.io/load-balancer-source-ranges"
_MODE_ANNOTATION: Final = "service.kubernetes.io/topology-mode"
_HINTS_ANNOTATION: Final = "service.kubernetes.io/topology-aware-hints"


def is_externally_accessible(spec: Object) -> bool:
    kind = spec.get("type")
    return kind in ("LoadBalancer", "NodePort") or (kind == "ClusterIP" and bool(spec.get("externalIPs")))


def validate_service_annotations(service: Object, old: Object | None) -> Iterator[Cause]:
    annotations, spec = service["metadata"].get("annotations") or {}, service["spec"]
    mode, hints = annotations.get(_MODE_ANNOTATION), annotations.get(_HINTS_ANNOTATION)
    if mode is not None and hints is not None and mode != hints:
        why = f"must match annotations[{_HINTS_ANNOTATION}] when both are specified"
        yield invalid(f"metadata.annotations[{_MODE_ANNOTATION}]", mode, why)
    ranges = annotations.get(_RANGES_ANNOTATION)
    if ranges is None or spec.get("loadBalancerSourceRanges"):
        return
    path = f"metadata.annotations[{_RANGES_ANNOTATION}]"
    if spec["type"] != "LoadBalancer":
        yield forbidden(path, _ONLY_BALANCED)
    before = (old["metadata"].get("annotations") or {}) if old is not None else {}
    if ranges.strip() and ranges != before.get(_RANGES_ANNOTATION):
        for text in ranges.split(","):
            yield from validate_range(text.strip(), path)


def validate_service_spec(spec: Object, before: Object) -> Iterator[Cause]:
    """Validate a spec, except for its addresses and for values that ``before`` has already."""
    kind, ports = spec.get("type"), spec.get("ports") or []
    if not ports and not is_headless(spec) and needs_address(spec):
        yield required("spec.ports")
    if kind in ("LoadBalancer", "NodePort") and is_headless(spec):
        yield invalid("spec.clusterIPs[0]", "None", f"may not be set to 'None' for {kind} services")
    if kind == "ExternalName":
        yield from _validate_external_name(spec)
    yield from _validate_ports(ports)
    yield from validate_labels(spec.get("selector") or {}, "spec.selector")
    yield from _validate_affinity(spec)
    for index, address in enumerate(spec.get("externalIPs") or ()):
        at = f"spec.externalIPs[{index}]"
        wrong = list(validate_address(address, at, before.get("externalIPs") or ()))
        yield from wrong or validate_endpoint_address(address, at)
    if kind not in _TYPES:
        yield not_supported("spec.type", kind, _TYPES)
    yield from _validate_repeated_ports(ports, kind)
    yield from _validate_load_balancer(spec, before)
    yield from _validate_traffic(spec)


def _validate_external_name(spec: Object) -> Iterator[Cause]:
    for field in ("clusterIPs", "ipFamilies", "ipFamilyPolicy"):
        if spec.get(field):
            yield forbidden(f"spec.{field}", "may not be set for ExternalName services")
    name = (spec.get("externalName") or "").removesuffix(".")
    if not name:
        yield required("spec.externalName")
    else:
        yield from (invalid("spec.externalName", name, why) for why in names.subdomain(name))


def _validate_ports(ports: list[Object]) -> Iterator[Cause]:
    seen: set[str] = set()
    for index, port in enumerate(ports):
        at, name, number = f"spec.ports[{index}]", port.get("name"), port.get("port") or 0
        if name:
            yield from (invalid(f"{at}.name", name, why) for why in names.label(name))
            if name in seen:
                yield duplicate(f"{at}.name", name)
            seen.add(name)
        elif len(ports) > 1:
            yield required(f"{at}.name")
        if not 1 <= number <= 65535:
            yield invalid(f"{at}.port", number, _PORT_RANGE)
        if port.get("protocol") not in PROTOCOLS:
            yield not_supported(f"{at}.protocol", port.get("protocol"), PROTOCOLS)
        yield from validate_port(port.get("targetPort"), f"{at}.targetPort")
        if (protocol := port.get("appProtocol")) is not None:
            yield from (invalid(f"{at}.appProtocol", protocol, why) for why in names.qualified_name(protocol))


def _validate_repeated_ports(ports: list[Object], kind: str | None) -> Iterator[Cause]:
    on_nodes: set[tuple[str, int]] = set()
    numbers: set[tuple[str, int]] = set()
    for index, port in enumerate(ports):
        at, node_port = f"spec.ports[{index}]", port.get("nodePort") or 0
        if node_port and kind == "ClusterIP":
            yield forbidden(f"{at}.nodePort", "may not be used when `type` is 'ClusterIP'")
        if node_port and (port.get("protocol"), node_port) in on_nodes:
            yield duplicate(f"{at}.nodePort", node_port)
        if (port.get("protocol"), port.get("port")) in numbers:
            yield duplicate(at, {"protocol": port.get("protocol"), "port": port.get("port")})
        on_nodes.add((port.get("protocol") or "", node_port))
        numbers.add((port.get("protocol") or "", port.get("port") or 0))


def _validate_affinity(spec: Object) -> Iterator[Cause]:
    affinity = spec.get("sessionAffinity")
    if affinity not in ("ClientIP", "None"):
        yield not_supported("spec.sessionAffinity", affinity, ("ClientIP", "None"))
    if affinity == "ClientIP":
        seconds = spec["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"]
        if not 0 < seconds <= _MOST_AFFINITY_SECONDS:
            why = f"must be greater than 0 and less than {_MOST_AFFINITY_SECONDS}"
            yield invalid("spec.sessionAffinityConfig.clientIP.timeoutSeconds", seconds, why)


def _validate_load_balancer(spec: Object, before: Object) -> Iterator[Cause]:
    balanced = spec.get("type") == "LoadBalancer"
    ranges = spec.get("loadBalancerSourceRanges") or []
    if ranges and not balanced:
        yield forbidden("spec.LoadBalancerSourceRanges", _ONLY_BALANCED)
    known = {text.strip() for text in before.get("loadBalancerSourceRanges") or ()}
    for index, text in enumerate(ranges):
        yield from validate_range(text.strip(), f"spec.LoadBalancerSourceRanges[{index}]", known)
    if spec.get("allocateLoadBalancerNodePorts") is not None and not balanced:
        yield forbidden("spec.allocateLoadBalancerNodePorts", _ONLY_BALANCED)
    name = spec.get("loadBalancerClass")
    if name is not None and not balanced:
        yield forbidden("spec.loadBalancerClass", _ONLY_BALANCED)
    elif name is not None:
        yield from (invalid("spec.loadBalancerClass", name, why) for why in names.qualified_name(name))


def _validate_traffic(spec: Object) -> Iterator[Cause]:
    outside, inner = spec.get("externalTrafficPolicy"), spec.get("internalTrafficPolicy")
    if not is_externally_accessible(spec):
        if outside:
            yield invalid("spec.externalTrafficPolicy", outside, "may only be set for externally-accessible services")
    elif outside not in ("Cluster", "Local"):
        yield not_supported("spec.externalTrafficPolicy", outside, ("Cluster", "Local"))
    if not needs_health_check_port(spec) and spec.get("healthCheckNodePort"):
        why = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"
        yield invalid("spec.healthCheckNodePort", spec["healthCheckNodePort"], why)
    if inner is not None and inner not in ("Cluster", "Local"):
        yield not_supported("spec.internalTrafficPolicy", inner, ("Cluster", "Local"))
    distribution = spec.get("trafficDistribution")
    if distribution is not None and distribution not in _DISTRIBUTIONS:
        yield not_supported("spec.trafficDistribution", distribution, _DISTRIBUTIONS)


def validate_service_change(spec: Object, before: Object) -> Iterator[Cause]:
    """Validate that a Service keeps its address as long as its type needs one."""
    if needs_address(spec) and needs_address(before) and not (is_headless(spec) and is_headless(before)):
        addresses = spec.get("clusterIPs") or []
        for index, (address, was) in enumerate(zip(addresses, before.get("clusterIPs") or (), strict=False)):
            if address != was:
                yield invalid(f"spec.clusterIPs[{index}]", addresses, "may not change once set")
    name = spec.get("loadBalancerClass")
    if spec["type"] == before["type"] == "LoadBalancer" and name != before.get("loadBalancerClass"):
        yield invalid("spec.loadBalancerClass", name, "may not change once set")
    checked = needs_health_check_port(spec) and needs_health_check_port(before)
    if checked and spec.get("healthCheckNodePort") != before.get("healthCheckNodePort"):
        yield forbidden("spec.healthCheckNodePort", "field is immutable")


def validate_load_balancer_status(new: Object, old: Object) -> Iterator[Cause]:
    """Validate the ingress points, which the load balancer's controller writes."""
    path = "status.loadBalancer.ingress"
    points, before = _ingress(new), _ingress(old)
    if points and new["spec"]["type"] != "LoadBalancer":
        yield forbidden(path, "may only be used when `spec.type` is 'LoadBalancer'")
        return
    known = {point["ip"] for point in before if point.get("ip")}
    for index, point in enumerate(points):
        yield from _validate_ingress(point, known, f"{path}[{index}]")


def _ingress(service: Object) -> list[Object]:
    return ((service.get("status") or {}).get("loadBalancer") or {}).get("ingress") or []


def _validate_ingress(point: Object, known: set[str], path: str) -> Iterator[Cause]:
    address, mode, name = point.get("ip"), point.get("ipMode"), point.get("hostname")
    if address:
        yield from validate_address(address, f"{path}.ip", known)
    elif mode is not None:
        yield forbidden(f"{path}.ipMode", "may not be specified when `ip` is not set")
    if address and mode not in _ADDRESS_MODES:
        yield not_supported(f"{path}.ipMode", mode, _ADDRESS_MODES)
    if name:
        yield from (invalid(f"{path}.hostname", name, why) for why in names.subdomain(name))
        if read_address(name) is not None:
            yield invalid(f"{path}.hostname", name, "must be a DNS name, not an IP address")
