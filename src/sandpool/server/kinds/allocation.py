"""What a Service is given by the cluster: an address of its own, and ports on the nodes.

Where the search for a free one starts follows from the name of the Service, so the same Services get the same addresses
whatever else was there before, unless something is in the way.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable
from typing import Final
from zlib import crc32

from sandpool.api.causes import invalid
from sandpool.api.kinds import SERVICE
from sandpool.api.resource import Object
from sandpool.kube.errors import ApiError
from sandpool.kube.errors import invalid as refuse
from sandpool.server.kinds.addresses import is_address
from sandpool.server.kinds.cow import put
from sandpool.server.kinds.kind import Cluster

SERVICE_RANGE: Final = ipaddress.IPv4Network("10.96.0.0/12")
NODE_PORTS: Final = range(30000, 32768)
# The network itself, and the address under which the API is known.
_RESERVED: Final = 2


def needs_address(spec: Object) -> bool:
    return spec.get("type") != "ExternalName"


def needs_node_ports(spec: Object) -> bool:
    kind = spec.get("type")
    return kind == "NodePort" or (kind == "LoadBalancer" and spec.get("allocateLoadBalancerNodePorts") is not False)


def needs_health_check(spec: Object) -> bool:
    return spec.get("type") == "LoadBalancer" and spec.get("externalTrafficPolicy") == "Local"


def allocate(service: Object, old: Object | None, cluster: Cluster) -> Object:
    """The service with everything it needs and has not got. Raises Invalid for an address it cannot have."""
    spec = service["spec"]
    metadata = service["metadata"]
    before = (old or {}).get("spec") or {}
    wants_address = needs_address(spec) and spec.get("clusterIP") != before.get("clusterIP", "")
    wants_address = wants_address or (needs_address(spec) and not spec.get("clusterIP"))
    if not (wants_address or needs_node_ports(spec)):
        return service
    others = [
        other["spec"]
        for other in cluster.objects(SERVICE.group_resource)
        if (other["metadata"]["name"], other["metadata"].get("namespace"))
        != (metadata.get("name"), metadata.get("namespace"))
    ]
    seed = crc32(f"{metadata.get('namespace')}/{metadata.get('name')}".encode())
    if wants_address and spec.get("clusterIP") != "None":
        spec = _with_address(service, spec, {other.get("clusterIP") for other in others}, seed)
    if needs_node_ports(spec):
        spec = _with_node_ports(spec, _node_ports(others), seed)
    return put(service, "spec", spec)


def _with_address(service: Object, spec: Object, used: Collection[str | None], seed: int) -> Object:
    wanted = spec.get("clusterIP")
    if wanted and is_address(wanted):
        if ipaddress.ip_address(wanted) not in SERVICE_RANGE:
            raise _refuse_address(service, wanted, "the provided network does not match the current range")
        if wanted in used:
            raise _refuse_address(service, wanted, "provided IP is already allocated")
    elif not wanted:
        size = SERVICE_RANGE.num_addresses - _RESERVED - 1
        for step in range(size):
            candidate = str(SERVICE_RANGE[_RESERVED + (seed + step) % size])
            if candidate not in used:
                return {**spec, "clusterIP": candidate, "clusterIPs": [candidate]}
        raise _refuse_address(service, "", "range is full")
    return spec


def _refuse_address(service: Object, address: str, why: str) -> ApiError:
    cause = invalid("spec.clusterIPs", [address], f"failed to allocate IP {address}: {why}")
    return refuse(SERVICE, service["metadata"].get("name") or "", [cause])


def _with_node_ports(spec: Object, used: set[int], seed: int) -> Object:
    used = used | _node_ports([spec])
    ports = []
    for port in spec.get("ports") or ():
        if not port.get("nodePort"):
            port = {**port, "nodePort": _free_port(used, seed)}
            used.add(port["nodePort"])
        ports.append(port)
    spec = put(spec, "ports", ports) if ports else spec
    if needs_health_check(spec) and not spec.get("healthCheckNodePort"):
        spec = {**spec, "healthCheckNodePort": _free_port(used, seed)}
    return spec


def _free_port(used: Collection[int], seed: int) -> int:
    candidates = (NODE_PORTS[(seed + step) % len(NODE_PORTS)] for step in range(len(NODE_PORTS)))
    return next(port for port in candidates if port not in used)


def _node_ports(specs: Iterable[Object]) -> set[int]:
    used: set[int] = set()
    for spec in specs:
        used.update(port["nodePort"] for port in spec.get("ports") or () if port.get("nodePort"))
        if spec.get("healthCheckNodePort"):
            used.add(spec["healthCheckNodePort"])
    return used
