"""Endpoints and EndpointSlice: the addresses behind a Service."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sandpool.api.causes import Cause, duplicate, immutable, invalid, not_supported, required, too_many
from sandpool.api.resource import Object
from sandpool.server import names
from sandpool.server.kinds.addresses import read_address, validate_address, validate_endpoint_address
from sandpool.server.kinds.containers import PROTOCOLS, default_port
from sandpool.server.kinds.cow import each, fill_absent, inside
from sandpool.server.kinds.kind import KindRules

_ADDRESS_TYPES: Final = ("FQDN", "IPv4", "IPv6")
_MOST_ADDRESSES: Final = 100
_MOST_ENDPOINTS: Final = 1000


class EndpointsRules(KindRules):
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
        at, number = f"{path}.ports[{index}]", port.get("port") or 0
        if port.get("name"):
            yield from (invalid(f"{at}.name", port["name"], why) for why in names.label(port["name"]))
        elif len(ports) > 1:
            yield required(f"{at}.name")
        if not 1 <= number <= 65535:
            yield invalid(f"{at}.port", number, "must be between 1 and 65535, inclusive")
        if port.get("protocol") not in PROTOCOLS:
            yield not_supported(f"{at}.protocol", port.get("protocol"), PROTOCOLS)


def _validate_subset_address(address: Object, path: str) -> Iterator[Cause]:
    text = address.get("ip") or ""
    yield from validate_address(text, f"{path}.ip")
    if address.get("hostname"):
        yield from (invalid(f"{path}.hostname", address["hostname"], why) for why in names.label(address["hostname"]))
    if address.get("nodeName"):
        yield from (
            invalid(f"{path}.nodeName", address["nodeName"], why) for why in names.subdomain(address["nodeName"])
        )
    yield from validate_endpoint_address(text, f"{path}.ip")


class EndpointSliceRules(KindRules):
    spec_generation = True

    def default(self, obj: Object, old: Object | None = None) -> Object:
        return inside(
            obj, "ports", lambda ports: each(ports, lambda port: fill_absent(port, {"name": "", "protocol": "TCP"}))
        )

    def validate(self, new: Object, old: Object | None) -> list[Cause]:
        found = list(_validate_slice(new, old))
        if old is not None and new.get("addressType") != old.get("addressType"):
            found.append(immutable("addressType", new.get("addressType")))
        return found

    def generation_moves(self, new: Object, old: Object) -> bool:
        """Everything in a slice counts, and its labels do, because they say whose it is."""
        if new["metadata"].get("labels") != old["metadata"].get("labels"):
            return True
        return any(new.get(field) != old.get(field) for field in ("addressType", "endpoints", "ports"))


def _validate_slice(piece: Object, old: Object | None) -> Iterator[Cause]:
    kind = piece.get("addressType")
    if not kind:
        yield required("addressType")
    elif kind not in _ADDRESS_TYPES:
        yield not_supported("addressType", kind, _ADDRESS_TYPES)
    seen: set[str] = set()
    for index, port in enumerate(piece.get("ports") or ()):
        at, name = f"ports[{index}]", port.get("name") or ""
        if name:
            yield from (invalid(f"{at}.name", name, why) for why in names.label(name))
        if name in seen:
            yield duplicate(f"{at}.name", name)
        seen.add(name)
        if port.get("protocol") not in PROTOCOLS:
            yield not_supported(f"{at}.protocol", port.get("protocol"), PROTOCOLS)
    endpoints = piece.get("endpoints") or []
    if old is None or endpoints != (old.get("endpoints") or []):
        if len(endpoints) > _MOST_ENDPOINTS:
            yield too_many("endpoints", len(endpoints), _MOST_ENDPOINTS)
            return
        for index, endpoint in enumerate(endpoints):
            yield from _validate_endpoint(endpoint, kind or "", f"endpoints[{index}]")


def _validate_endpoint(endpoint: Object, kind: str, path: str) -> Iterator[Cause]:
    addresses = endpoint.get("addresses") or []
    if not addresses:
        yield required(f"{path}.addresses", "must contain at least 1 address")
    elif len(addresses) > _MOST_ADDRESSES:
        yield too_many(f"{path}.addresses", len(addresses), _MOST_ADDRESSES)
    for index, text in enumerate(addresses):
        at = f"{path}.addresses[{index}]"
        if kind == "FQDN":
            yield from (invalid(at, text, why) for why in names.subdomain(text.removesuffix(".")))
        elif read_address(text) is None:
            yield from validate_address(text, at)
        else:
            if (":" in text) != (kind == "IPv6"):
                yield invalid(f"{path}.addresses", text, f"must be an {kind} address")
            yield from validate_endpoint_address(text, at)
    if endpoint.get("nodeName"):
        yield from (
            invalid(f"{path}.nodeName", endpoint["nodeName"], why) for why in names.subdomain(endpoint["nodeName"])
        )
    if endpoint.get("hostname"):
        yield from (invalid(f"{path}.hostname", endpoint["hostname"], why) for why in names.label(endpoint["hostname"]))
