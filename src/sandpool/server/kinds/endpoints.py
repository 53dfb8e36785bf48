"""Endpoints and EndpointSlice: the addresses behind a Service."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sandpool.api.causes import Cause, duplicate, immutable, invalid, not_supported, required, too_many
from sandpool.api.resource import Object
from sandpool.server import names
from sandpool.server.kinds.containers import PROTOCOLS, default_port
from sandpool.server.kinds.copy_on_write import drop, each, fill_absent, inside
from sandpool.server.kinds.ip_addresses import validate_address, validate_canonical_address, validate_endpoint_address
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
        yield from _validate_subset_port(port, f"{path}.ports[{index}]", named=len(ports) > 1)


def _validate_subset_port(port: Object, path: str, *, named: bool) -> Iterator[Cause]:
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


_ADDRESS_TYPES: Final = ("FQDN", "IPv4", "IPv6")
_MOST_ADDRESSES: Final = 100
_MOST_ENDPOINTS: Final = 1000
_MOST_PORTS: Final = 20000
_MOST_HINTS: Final = 8
_COUNTED: Final = ("addressType", "endpoints", "ports")


class EndpointSliceStrategy(KindStrategy):
    spec_generation = True

    def default(self, obj: Object, old: Object | None = None) -> Object:
        return inside(obj, "ports", lambda ports: each(ports, _default_slice_port))

    def prepare_create(self, obj: Object) -> Object:
        return inside(obj, "endpoints", lambda endpoints: each(endpoints, _without_topology))

    def prepare_update(self, new: Object, old: Object) -> Object:
        return self.prepare_create(new)

    def validate(self, new: Object, old: Object | None) -> list[Cause]:
        kind = new.get("addressType") or ""
        found = list(_validate_type(kind))
        found += _validate_slice_ports(new.get("ports") or [])
        endpoints = new.get("endpoints") or []
        if old is None or endpoints != (old.get("endpoints") or []):
            found += _validate_endpoints(endpoints, kind)
        if old is not None and kind != old.get("addressType"):
            found.append(immutable("addressType", kind))
        return found

    def bumps_generation(self, new: Object, old: Object) -> bool:
        """All fields of a slice count, and so do its labels, because they name its Service."""
        if new["metadata"].get("labels") != old["metadata"].get("labels"):
            return True
        return any(new.get(field) != old.get(field) for field in _COUNTED)


def _default_slice_port(port: Object) -> Object:
    return fill_absent(port, {"name": "", "protocol": "TCP"})


def _without_topology(endpoint: Object) -> Object:
    """Drop ``deprecatedTopology``, a read-only field of removed API versions."""
    return drop(endpoint, "deprecatedTopology")


def _validate_type(kind: str) -> Iterator[Cause]:
    if not kind:
        yield required("addressType")
    elif kind not in _ADDRESS_TYPES:
        yield not_supported("addressType", kind, _ADDRESS_TYPES)


def _validate_slice_ports(ports: list[Object]) -> Iterator[Cause]:
    if len(ports) > _MOST_PORTS:
        yield too_many("ports", len(ports), _MOST_PORTS)
        return
    seen: set[str] = set()
    for index, port in enumerate(ports):
        at, name = f"ports[{index}]", port.get("name") or ""
        if name:
            yield from (invalid(f"{at}.name", name, why) for why in names.label(name))
        if name in seen:
            yield duplicate(f"{at}.name", name)
        seen.add(name)
        if port.get("protocol") not in PROTOCOLS:
            yield not_supported(f"{at}.protocol", port.get("protocol"), PROTOCOLS)
        if (protocol := port.get("appProtocol")) is not None:
            yield from (invalid(f"{at}.appProtocol", protocol, why) for why in names.qualified_name(protocol))


def _validate_endpoints(endpoints: list[Object], kind: str) -> Iterator[Cause]:
    if len(endpoints) > _MOST_ENDPOINTS:
        yield too_many("endpoints", len(endpoints), _MOST_ENDPOINTS)
        return
    for index, endpoint in enumerate(endpoints):
        yield from _validate_endpoint(endpoint, kind, f"endpoints[{index}]")


def _validate_endpoint(endpoint: Object, kind: str, path: str) -> Iterator[Cause]:
    addresses = endpoint.get("addresses") or []
    if not addresses:
        yield required(f"{path}.addresses", "must contain at least 1 address")
    elif len(addresses) > _MOST_ADDRESSES:
        yield too_many(f"{path}.addresses", len(addresses), _MOST_ADDRESSES)
    for index, text in enumerate(addresses):
        at = f"{path}.addresses[{index}]"
        if kind == "FQDN":
            yield from _validate_domain(text, at)
        elif kind in ("IPv4", "IPv6"):
            yield from _validate_ip(text, kind, at, f"{path}.addresses")
    node, host = endpoint.get("nodeName"), endpoint.get("hostname")
    if node is not None:
        yield from (invalid(f"{path}.nodeName", node, why) for why in names.subdomain(node))
    if host is not None:
        yield from (invalid(f"{path}.hostname", host, why) for why in names.label(host))
    yield from _validate_hints(endpoint.get("hints") or {}, f"{path}.hints")


def _validate_ip(text: str, kind: str, path: str, list_path: str) -> Iterator[Cause]:
    wrong = list((validate_address if kind == "IPv4" else validate_canonical_address)(text, path))
    yield from wrong
    if wrong:
        return
    if (":" in text) != (kind == "IPv6"):
        yield invalid(list_path, text, f"must be an {kind} address")
    yield from validate_endpoint_address(text, path)


def _validate_domain(text: str, path: str) -> Iterator[Cause]:
    name = text.removesuffix(".")
    if not text:
        yield required(path)
    elif wrong := names.subdomain(name):
        yield invalid(path, name, ",".join(wrong))
    elif "." not in name:
        yield invalid(path, name, "should be a domain with at least two segments separated by dots")


def _validate_hints(hints: Object, path: str) -> Iterator[Cause]:
    for field, check in (("forZones", names.label_value), ("forNodes", names.subdomain)):
        items = hints.get(field) or []
        if len(items) > _MOST_HINTS:
            yield too_many(f"{path}.{field}", len(items), _MOST_HINTS)
            return
        seen: set[str] = set()
        for index, item in enumerate(items):
            at, name = f"{path}.{field}[{index}].name", item.get("name") or ""
            if name in seen:
                yield duplicate(at, name)
            seen.add(name)
            yield from (invalid(at, name, why) for why in check(name))
