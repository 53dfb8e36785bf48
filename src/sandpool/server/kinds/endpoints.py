"""Endpoints: the addresses behind a Service, all in one object."""

from __future__ import annotations

from collections.abc import Iterator

from sandpool.api.causes import Cause, invalid, not_supported, required
from sandpool.api.resource import Object
from sandpool.server import names
from sandpool.server.kinds.containers import PROTOCOLS, default_port
from sandpool.server.kinds.copy_on_write import each, inside
from sandpool.server.kinds.ip_addresses import validate_address, validate_endpoint_address
from sandpool.server.kinds.strategy import KindStrategy


class EndpointsStrategy(KindStrategy):
    allow_create_on_update = True

    def default(self, obj: Object, old: Object | None = None) -> Object:
        return inside(obj, "subsets", lambda subsets: each(subsets, _default_subset))

    def validate(self, new: Object, old: Object | None) -> list[Cause]:
        subsets = new.get("subsets") or []
        if old is not None and subsets == (old.get("subsets") or []):
            return []
        return [
            cause for index, subset in enumerate(subsets) for cause in _validate_subset(subset, f"subsets[{index}]")
        ]


def _default_subset(subset: Object) -> Object:
    return inside(subset, "ports", lambda ports: each(ports, default_port))


def _validate_subset(subset: Object, path: str) -> Iterator[Cause]:
    ready, others, ports = (subset.get(field) or [] for field in ("addresses", "notReadyAddresses", "ports"))
    if not ready and not others:
        yield required(path, "must specify `addresses` or `notReadyAddresses`")
    for field, addresses in (("addresses", ready), ("notReadyAddresses", others)):
        for index, address in enumerate(addresses):
            yield from _validate_subset_address(address, f"{path}.{field}[{index}]")
    for index, port in enumerate(ports):
        yield from _validate_port(port, f"{path}.ports[{index}]", named=len(ports) > 1)


def _validate_port(port: Object, path: str, *, named: bool) -> Iterator[Cause]:
    number, name = port.get("port") or 0, port.get("name")
    if name:
        yield from (invalid(f"{path}.name", name, why) for why in names.label(name))
    elif named:
        yield required(f"{path}.name")
    if not 1 <= number <= 65535:
        yield invalid(f"{path}.port", number, "must be between 1 and 65535, inclusive")
    if port.get("protocol") not in PROTOCOLS:
        yield not_supported(f"{path}.protocol", port.get("protocol"), PROTOCOLS)
    if (protocol := port.get("appProtocol")) is not None:
        yield from (invalid(f"{path}.appProtocol", protocol, why) for why in names.qualified_name(protocol))


def _validate_subset_address(address: Object, path: str) -> Iterator[Cause]:
    text, host, node = address.get("ip") or "", address.get("hostname"), address.get("nodeName")
    yield from validate_address(text, f"{path}.ip")
    if host:
        yield from (invalid(f"{path}.hostname", host, why) for why in names.label(host))
    if node is not None:
        yield from (invalid(f"{path}.nodeName", node, why) for why in names.subdomain(node))
    yield from validate_endpoint_address(text, f"{path}.ip")
