"""NetworkPolicy: which traffic pods may receive and send."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from sandpool.api.causes import Cause, forbidden, invalid, not_supported, required
from sandpool.api.resource import Object
from sandpool.server import names
from sandpool.server.kinds.copy_on_write import each, fill_absent, fill_empty, inside
from sandpool.server.kinds.ip_addresses import read_range, validate_range
from sandpool.server.kinds.label_selectors import validate_label_selector
from sandpool.server.kinds.strategy import KindStrategy

_POLICY_TYPES: Final = ("Ingress", "Egress")
_PROTOCOLS: Final = ("TCP", "UDP", "SCTP")
_PEERS: Final = {"ingress": "from", "egress": "to"}
_PORT_RANGE: Final = "must be between 1 and 65535, inclusive"


class NetworkPolicyStrategy(KindStrategy):
    spec_generation = True

    def default(self, obj: Object, old: Object | None = None) -> Object:
        obj = fill_absent(obj, {"spec": {}})
        return obj if old is not None and obj["spec"] is old.get("spec") else inside(obj, "spec", _default_spec)

    def validate(self, new: Object, old: Object | None) -> list[Cause]:
        if old is not None and new["spec"] is old["spec"]:
            return []
        # Ranges that older rules accepted stay valid.
        return list(_validate_spec(new["spec"], _ranges(old["spec"]) if old is not None else ()))


def _default_spec(spec: Object) -> Object:
    types = ["Ingress", "Egress"] if spec.get("egress") else ["Ingress"]
    spec = fill_empty(spec, {"policyTypes": types})
    for direction in _PEERS:
        spec = inside(spec, direction, lambda rules: each(rules, _default_rule))
    return spec


def _default_rule(rule: Object) -> Object:
    return inside(rule, "ports", lambda ports: each(ports, lambda port: fill_absent(port, {"protocol": "TCP"})))


def _validate_spec(spec: Object, known: Collection[str]) -> Iterator[Cause]:
    yield from validate_label_selector(spec.get("podSelector") or {}, "spec.podSelector")
    for direction, peers in _PEERS.items():
        for index, rule in enumerate(spec.get(direction) or ()):
            at = f"spec.{direction}[{index}]"
            for position, port in enumerate(rule.get("ports") or ()):
                yield from _validate_port(port, f"{at}.ports[{position}]")
            for position, peer in enumerate(rule.get(peers) or ()):
                yield from _validate_peer(peer, known, f"{at}.{peers}[{position}]")
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


def _validate_peer(peer: Object, known: Collection[str], path: str) -> Iterator[Cause]:
    given = [kind for kind in ("podSelector", "namespaceSelector", "ipBlock") if peer.get(kind) is not None]
    for kind in given:
        if kind == "ipBlock":
            yield from _validate_block(peer[kind], known, f"{path}.ipBlock")
        else:
            yield from validate_label_selector(peer[kind], f"{path}.{kind}")
    if not given:
        yield required(path, "must specify a peer")
    elif len(given) > 1 and "ipBlock" in given:
        yield forbidden(path, "may not specify both ipBlock and another peer")


def _validate_block(block: Object, known: Collection[str], path: str) -> Iterator[Cause]:
    whole = block.get("cidr")
    if not whole:
        yield required(f"{path}.cidr")
        return
    yield from validate_range(whole, f"{path}.cidr", known)
    outer = read_range(whole)
    if outer is None:
        return
    for index, part in enumerate(block.get("except") or ()):
        yield from validate_range(part, f"{path}.except[{index}]", known)
        inner = read_range(part)
        if inner is not None and (inner.prefixlen <= outer.prefixlen or inner.network_address not in outer):
            yield invalid(f"{path}.except[{index}]", part, "must be a strict subset of `cidr`")


def _ranges(spec: Object) -> set[str]:
    """All CIDR ranges of a policy."""
    found: set[str] = set()
    for direction, peers in _PEERS.items():
        for rule in spec.get(direction) or ():
            for peer in rule.get(peers) or ():
                block = peer.get("ipBlock") or {}
                found.update((block.get("cidr") or "", *(block.get("except") or ())))
    return found
