"""Allocation of cluster IPs and node ports to Services.

The search for a free address starts at a hash of the Service's name. The same Services therefore get the same
addresses in every run, unless an address is taken. The other Services are the record of what is taken. They are read
only if there is something to allocate: most Services here are headless and need nothing.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable
from functools import cached_property
from typing import Final
from zlib import crc32

from sandpool.api.causes import Cause, invalid
from sandpool.api.kinds import SERVICE
from sandpool.api.resource import Object
from sandpool.kube.errors import ApiError, InternalError
from sandpool.kube.errors import invalid as refuse
from sandpool.server.kinds.copy_on_write import put
from sandpool.server.kinds.ip_addresses import read_address
from sandpool.server.kinds.service_addresses import is_headless, needs_address
from sandpool.server.kinds.strategy import ClusterReader

SERVICE_RANGE: Final = ipaddress.IPv4Network("10.96.0.0/12")
NODE_PORTS: Final = range(30000, 32768)
# The network address, and the address of the API server.
_RESERVED: Final = 2
_TAKEN: Final = "already allocated"
_OUT_OF_RANGE: Final = (
    f"provided port is not in the valid range. The range of valid ports is {NODE_PORTS.start}-{NODE_PORTS.stop - 1}"
)


def allocates_node_ports(spec: Object) -> bool:
    """Whether ports without a node port are given one."""
    kind = spec.get("type")
    return kind == "NodePort" or (kind == "LoadBalancer" and spec.get("allocateLoadBalancerNodePorts") is not False)


def needs_health_check_port(spec: Object) -> bool:
    return spec.get("type") == "LoadBalancer" and spec.get("externalTrafficPolicy") == "Local"


def allocate(service: Object, old: Object | None, cluster: ClusterReader) -> Object:
    """Return the Service with the addresses and ports it lacks. Raises Invalid for one that it cannot have."""
    allocation = _Allocation(service, cluster)
    spec, before = service["spec"], old["spec"] if old is not None else None
    if needs_address(spec) and (before is None or not needs_address(before)) and not is_headless(spec):
        spec = allocation.with_address(spec)
    if spec.get("type") in ("NodePort", "LoadBalancer"):
        spec = allocation.with_node_ports(spec, before)
    if needs_health_check_port(spec) and (before is None or not needs_health_check_port(before)):
        spec = allocation.with_health_check(spec)
    return put(service, "spec", spec)


class _Allocation:
    """The allocations of one write to one Service."""

    def __init__(self, service: Object, cluster: ClusterReader) -> None:
        metadata = service["metadata"]
        self.name = metadata.get("name") or ""
        self.namespace = metadata.get("namespace")
        self.cluster = cluster
        self.seed = crc32(f"{self.namespace}/{self.name}".encode())

    @cached_property
    def others(self) -> list[Object]:
        return [
            other["spec"]
            for other in self.cluster.objects(SERVICE.group_resource)
            if (other["metadata"]["name"], other["metadata"].get("namespace")) != (self.name, self.namespace)
        ]

    @cached_property
    def used_ports(self) -> set[int]:
        """Node ports of the other Services and those allocated in this write."""
        return _node_ports(self.others)

    def with_address(self, spec: Object) -> Object:
        used = {other.get("clusterIP") for other in self.others}
        wanted = spec.get("clusterIP")
        if not wanted:
            address = self._free_address(used)
            return {**spec, "clusterIP": address, "clusterIPs": [address]}
        if read_address(wanted) not in SERVICE_RANGE:
            raise self._refuse_address(spec, wanted, "the provided network does not match the current range")
        if wanted in used:
            raise self._refuse_address(spec, wanted, f"provided IP is {_TAKEN}")
        return spec

    def _free_address(self, used: Collection[str | None]) -> str:
        size = SERVICE_RANGE.num_addresses - _RESERVED - 1
        for step in range(size):
            candidate = str(SERVICE_RANGE[_RESERVED + (self.seed + step) % size])
            if candidate not in used:
                return candidate
        raise _failed(f'a serviceIP for Service "{self.name}": range is full')

    def _refuse_address(self, spec: Object, address: str, why: str) -> ApiError:
        return self._refuse(invalid("spec.clusterIPs", spec["clusterIPs"], f"failed to allocate IP {address}: {why}"))

    def _refuse(self, cause: Cause) -> ApiError:
        return refuse(SERVICE, self.name, [cause])

    def with_node_ports(self, spec: Object, before: Object | None) -> Object:
        had = _node_ports([before]) if before is not None else set()
        given: dict[int | None, int] = {}  # ports of one number, one per protocol, share a port on the nodes
        ports = []
        for index, port in enumerate(spec.get("ports") or ()):
            number, asked = port.get("port"), port.get("nodePort") or 0
            if not asked and not allocates_node_ports(spec):
                ports.append(port)
                continue
            if before is None and not asked:
                asked = given.get(number) or _asked_for(number, spec["ports"])
            known = asked == given.get(number) if before is None else asked in had or asked in given.values()
            if not asked:
                asked = self._free_port(had | _node_ports([spec]))
            elif not known:
                self._take_port(asked, f"spec.ports[{index}].nodePort")
            given[number] = asked
            ports.append(put(port, "nodePort", asked))
        return put(spec, "ports", ports) if ports else spec

    def _take_port(self, port: int, path: str) -> None:
        if port not in NODE_PORTS:
            raise self._refuse(invalid(path, port, _OUT_OF_RANGE))
        if port in self.used_ports:
            raise self._refuse(invalid(path, port, f"provided port is {_TAKEN}"))
        self.used_ports.add(port)

    def with_health_check(self, spec: Object) -> Object:
        asked = spec.get("healthCheckNodePort")
        if not asked:
            return {**spec, "healthCheckNodePort": self._free_port(_node_ports([spec]))}
        if asked not in NODE_PORTS or asked in self.used_ports:
            why = _OUT_OF_RANGE if asked not in NODE_PORTS else f"provided port is {_TAKEN}"
            raise _failed(f"requested HealthCheck NodePort {asked}: {why}")
        return spec

    def _free_port(self, own: Collection[int]) -> int:
        candidates = (NODE_PORTS[(self.seed + step) % len(NODE_PORTS)] for step in range(len(NODE_PORTS)))
        port = next((port for port in candidates if port not in self.used_ports and port not in own), 0)
        if not port:
            raise _failed("a nodePort: range is full")
        self.used_ports.add(port)
        return port


def _failed(what: str) -> InternalError:
    """An InternalError, as in kube-apiserver, even where the request is at fault."""
    why = f"failed to allocate {what}"
    return InternalError(f"Internal error occurred: {why}", details={"causes": [{"message": why}]})


def _asked_for(number: int | None, ports: list[Object]) -> int:
    """The node port that another port with the same number requests."""
    return next((port["nodePort"] for port in ports if port.get("port") == number and port.get("nodePort")), 0)


def _node_ports(specs: Iterable[Object]) -> set[int]:
    used: set[int] = set()
    for spec in specs:
        used.update(port["nodePort"] for port in spec.get("ports") or () if port.get("nodePort"))
        if spec.get("healthCheckNodePort"):
            used.add(spec["healthCheckNodePort"])
    return used
