"""What is wrong with the spec of a Service."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sandpool.api.causes import Cause, duplicate, forbidden, invalid, not_supported, required
from sandpool.api.resource import Object
from sandpool.server import names
from sandpool.server.kinds.addresses import is_address, validate_address, validate_range
from sandpool.server.kinds.allocation import needs_address, needs_health_check
from sandpool.server.kinds.containers import PROTOCOLS
from sandpool.server.kinds.metadata import validate_labels
from sandpool.server.kinds.probes import validate_port

_TYPES: Final = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
_FAMILIES: Final = ("IPv4", "IPv6")
_FAMILY_POLICIES: Final = ("PreferDualStack", "RequireDualStack", "SingleStack")
_MOST_AFFINITY_SECONDS: Final = 86400
_DISTRIBUTIONS: Final = ("PreferClose", "PreferSameZone", "PreferSameNode")


def is_headless(spec: Object) -> bool:
    return spec.get("clusterIP") == "None" or (spec.get("clusterIPs") or [""])[0] == "None"


def is_externally_accessible(spec: Object) -> bool:
    kind = spec.get("type")
    return kind in ("LoadBalancer", "NodePort") or (kind == "ClusterIP" and bool(spec.get("externalIPs")))


def validate_service_spec(spec: Object) -> Iterator[Cause]:
    """Everything wrong with a spec apart from its addresses."""
    kind, ports = spec.get("type"), spec.get("ports") or []
    if not ports and not is_headless(spec) and kind != "ExternalName":
        yield required("spec.ports")
    if kind in ("LoadBalancer", "NodePort") and is_headless(spec):
        yield invalid("spec.clusterIPs[0]", "None", f"may not be set to 'None' for {kind} services")
    if kind == "ExternalName":
        yield from _validate_external_name(spec)
    yield from _validate_ports(ports)
    yield from validate_labels(spec.get("selector") or {}, "spec.selector")
    yield from _validate_affinity(spec)
    for index, address in enumerate(spec.get("externalIPs") or ()):
        yield from validate_address(address, f"spec.externalIPs[{index}]")
    if kind not in _TYPES:
        yield not_supported("spec.type", kind, _TYPES)
    yield from _validate_repeated_ports(ports, kind)
    yield from _validate_load_balancer(spec, kind)
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
            yield invalid(f"{at}.port", number, "must be between 1 and 65535, inclusive")
        if port.get("protocol") not in PROTOCOLS:
            yield not_supported(f"{at}.protocol", port.get("protocol"), PROTOCOLS)
        yield from validate_port(port.get("targetPort"), f"{at}.targetPort")
        if protocol := port.get("appProtocol"):
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


def validate_addresses(spec: Object) -> Iterator[Cause]:
    """What is wrong with the addresses of a Service that has any; looked at before one is given to it."""
    address, addresses = spec.get("clusterIP") or "", spec.get("clusterIPs") or []
    if address and addresses and addresses[0] != address:
        yield invalid("spec.clusterIPs", addresses, "first value must match `clusterIP`")
    if not address and addresses:
        yield invalid("spec.clusterIPs", addresses, "must be empty when `clusterIP` is not specified")
    for index, family in enumerate(spec.get("ipFamilies") or ()):
        if family not in _FAMILIES:
            yield not_supported(f"spec.ipFamilies[{index}]", family, _FAMILIES)
    policy = spec.get("ipFamilyPolicy")
    if policy is not None and policy not in _FAMILY_POLICIES:
        yield not_supported("spec.ipFamilyPolicy", policy, _FAMILY_POLICIES)
    if "None" in addresses[:1]:
        if len(addresses) > 1:
            yield invalid("spec.clusterIPs", addresses, "'None' must be the first and only value")
        return
    for index, each_address in enumerate(addresses):
        yield from validate_address(each_address, f"spec.clusterIPs[{index}]")
    if len(addresses) > 1 and all(map(is_address, addresses)) and len({":" in item for item in addresses}) == 1:
        yield invalid("spec.clusterIPs", addresses, "may specify no more than one IP for each IP family")


def _validate_load_balancer(spec: Object, kind: str | None) -> Iterator[Cause]:
    only = "may only be used when `type` is 'LoadBalancer'"
    ranges = spec.get("loadBalancerSourceRanges") or []
    if ranges and kind != "LoadBalancer":
        yield forbidden("spec.LoadBalancerSourceRanges", only)
    for index, text in enumerate(ranges):
        yield from validate_range(text.strip(), f"spec.LoadBalancerSourceRanges[{index}]")
    if kind != "LoadBalancer":
        if spec.get("allocateLoadBalancerNodePorts") is not None:
            yield forbidden("spec.allocateLoadBalancerNodePorts", only)
        if spec.get("loadBalancerClass") is not None:
            yield forbidden("spec.loadBalancerClass", "may only be used when `type` is 'LoadBalancer'")


def _validate_traffic(spec: Object) -> Iterator[Cause]:
    outside, inner = spec.get("externalTrafficPolicy"), spec.get("internalTrafficPolicy")
    if not is_externally_accessible(spec):
        if outside:
            yield invalid("spec.externalTrafficPolicy", outside, "may only be set for externally-accessible services")
    elif outside not in ("Cluster", "Local"):
        yield not_supported("spec.externalTrafficPolicy", outside, ("Cluster", "Local"))
    if not needs_health_check(spec) and spec.get("healthCheckNodePort"):
        why = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"
        yield invalid("spec.healthCheckNodePort", spec["healthCheckNodePort"], why)
    if inner is not None and inner not in ("Cluster", "Local"):
        yield not_supported("spec.internalTrafficPolicy", inner, ("Cluster", "Local"))
    distribution = spec.get("trafficDistribution")
    if distribution is not None and distribution not in _DISTRIBUTIONS:
        yield not_supported("spec.trafficDistribution", distribution, _DISTRIBUTIONS)


def validate_service_change(spec: Object, before: Object) -> Iterator[Cause]:
    """An address stays with a Service for life, unless it stops needing one."""
    addresses, had = spec.get("clusterIPs") or [], before.get("clusterIPs") or []
    if needs_address(spec) and had and addresses[:1] != had[:1]:
        yield invalid("spec.clusterIPs[0]", addresses or None, "may not change once set")
    families, before_families = spec.get("ipFamilies") or [], before.get("ipFamilies") or []
    if needs_address(spec) and before_families and families[:1] != before_families[:1]:
        yield invalid("spec.ipFamilies[0]", families or None, "may not change once set")
    health_checked = needs_health_check(spec) and needs_health_check(before)
    if health_checked and spec.get("healthCheckNodePort") != before.get("healthCheckNodePort"):
        yield forbidden("spec.healthCheckNodePort", "field is immutable")
