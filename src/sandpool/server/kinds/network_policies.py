"""NetworkPolicy: which traffic pods may receive and send."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Final

from sandpool.api.causes import Cause, forbidden, invalid, not_supported, required
from sandpool.api.resource import Object
from sandpool.server import names
from sandpool.server.kinds.addresses import validate_range
from sandpool.server.kinds.cow import each, fill_absent, fill_empty, inside
from sandpool.server.kinds.kind import KindRules
from sandpool.server.kinds.label_selectors import validate_label_selector

_POLICY_TYPES: Final = ("Ingress", "Egress")
_PROTOCOLS: Final = ("TCP", "UDP", "SCTP")
_PEERS: Final = {"ingress": "from", "egress": "to"}
_PORT_RANGE: Final = "must be between 1 and 65535, inclusive"


class NetworkPolicyRules(KindRules):
    spec_generation = True

    def default(self, obj: Object, old: Object | None = None) -> Object:
        obj = fill_absent(obj, {"spec": {}})
        return obj if old is not None and obj["spec"] is old.get("spec") else inside(obj, "spec", _default_spec)

    def validate(self, new: Object, old: Object | None) -> list[Cause]:
        if old is not None and new["spec"] is old["spec"]:
            return []
        return list(_validate_spec(new["spec"]))


def _default_spec(spec: Object) -> Object:
    types = ["Ingress", "Egress"] if spec.get("egress") else ["Ingress"]
    spec = fill_empty(spec, {"policyTypes": types})
    for direction in _PEERS:
        spec = inside(spec, direction, lambda rules: each(rules, _default_rule))
    return spec


def _default_rule(rule: Object) -> Object:
    return inside(rule, "ports", lambda ports: each(ports, lambda port: fill_absent(port, {"protocol": "TCP"})))


def _validate_spec(spec: Object) -> Iterator[Cause]:
    yield from validate_label_selector(spec.get("podSelector") or {}, "spec.podSelector")
    for direction, peers in _PEERS.items():
        for index, rule in enumerate(spec.get(direction) or ()):
            at = f"spec.{direction}[{index}]"
            for position, port in enumerate(rule.get("ports") or ()):
                yield from _validate_port(port, f"{at}.ports[{position}]")
            for position, peer in enumerate(rule.get(peers) or ()):
                yield from _validate_peer(peer, f"{at}.{peers}[{position}]")
    types = spec.get("policyTypes") or []
    if len(types) > len(_POLICY_TYPES):
        yield invalid("spec.policyTypes", types, "may not specify more than two policyTypes")
        return
    for index, kind in enumerate(types):
        if kind not in _POLICY_TYPES:
            yield not_supported(f"spec.policyTypes[{index}]", kind, _POLICY_TYPES)


def _validate_port(port: Object, path: str) -> Iterator[Cause]:
    if port.get("protocol") not in _PROTOCOLS:
        yield not_supported(f"{path}.protocol", port.get("protocol"), _PROTOCOLS)
    first, last = port.get("port"), port.get("endPort")
    if isinstance(first, str):
        if last is not None:
            yield invalid(f"{path}.endPort", last, "may not be specified when `port` is non-numeric")
        yield from (invalid(f"{path}.port", first, why) for why in names.port_name(first))
    elif first is not None:
        if not 1 <= first <= 65535:
            yield invalid(f"{path}.port", first, _PORT_RANGE)
        if last is not None and last < first:
            yield invalid(f"{path}.endPort", first, "must be greater than or equal to `port`")
        if last is not None and not 1 <= last <= 65535:
            yield invalid(f"{path}.endPort", last, _PORT_RANGE)
    elif last is not None:
        yield invalid(f"{path}.endPort", last, "may not be specified when `port` is not specified")


def _validate_peer(peer: Object, path: str) -> Iterator[Cause]:
    given = [kind for kind in ("podSelector", "namespaceSelector", "ipBlock") if peer.get(kind) is not None]
    for kind in given:
        if kind == "ipBlock":
            yield from _validate_block(peer[kind], f"{path}.ipBlock")
        else:
            yield from validate_label_selector(peer[kind], f"{path}.{kind}")
    if not given:
        yield required(path, "must specify a peer")
    elif len(given) > 1 and "ipBlock" in given:
        yield forbidden(path, "may not specify both ipBlock and another peer")


def _validate_block(block: Object, path: str) -> Iterator[Cause]:
    whole = block.get("cidr")
    if not whole:
        yield required(f"{path}.cidr")
        return
    wrong = list(validate_range(whole, f"{path}.cidr"))
    yield from wrong
    if wrong:
        return
    outer = ipaddress.ip_network(whole, strict=False)
    for index, part in enumerate(block.get("except") or ()):
        wrong = list(validate_range(part, f"{path}.except[{index}]"))
        yield from wrong
        if not wrong and not _is_strictly_inside(ipaddress.ip_network(part, strict=False), outer):
            yield invalid(f"{path}.except[{index}]", part, "must be a strict subset of `cidr`")


def _is_strictly_inside(
    inner: ipaddress.IPv4Network | ipaddress.IPv6Network, outer: ipaddress.IPv4Network | ipaddress.IPv6Network
) -> bool:
    return inner.prefixlen > outer.prefixlen and inner.network_address in outer
