"""Who may talk to whom: NetworkPolicies and pods, made into the few tables a firewall looks things up in.

Pods with the same policies share a chain, and a pod is an entry in a map from its address to that chain; so a template
with a thousand sandboxes is one chain and a thousand entries, and one more sandbox is one more entry. Peers that are
chosen by labels are named sets of addresses, shared by all rules that choose alike.

What the API promises is kept: a direction without any policy is open, one with policies is closed but for what any of
them allows. A pod that is in no map has no network at all, so nothing is open for the moment before its entry is there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Any, Final, NamedTuple

from sandpool.api.resource import Object
from sandpool.kube.selectors import LabelSelector
from sandpool.node.network.special_ranges import egress_exceptions

INGRESS: Final = "Ingress"
EGRESS: Final = "Egress"

#: The chain of pods whose traffic in a direction nobody restricts.
OPEN: Final = "open"


class Port(NamedTuple):
    protocol: str  # "tcp", "udp" or "sctp"
    first: int  # 0: any
    last: int


class Block(NamedTuple):
    """A range of addresses with holes."""

    cidr: str
    holes: tuple[str, ...]


class Rule(NamedTuple):
    """Lets a packet through whose other end is ``peer``: a Block, the name of a set, or anybody."""

    peer: Block | str | None
    ports: tuple[Port, ...]  # empty: any

    @property
    def is_for_v4(self) -> bool:
        return not isinstance(self.peer, Block) or ":" not in self.peer.cidr


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A pod as the firewall sees it. ``ports`` are those its containers have given names."""

    namespace: str
    name: str
    address: str
    labels: Mapping[str, str]
    ports: Mapping[str, Port] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Firewall:
    """``chains`` by name, and which chain the pod with an address has in each direction."""

    chains: Mapping[str, tuple[Rule, ...]]
    sets: Mapping[str, frozenset[str]]
    ingress: Mapping[str, str]
    egress: Mapping[str, str]


NOTHING: Final = Firewall({}, {}, {}, {})


def selectors(policies: Iterable[Object]) -> tuple[LabelSelector, ...]:
    """Everything by which policies choose pods, whom they are about or whom they let in. Labels that are the same to
    all of them are the same to the firewall."""
    found: list[LabelSelector] = []
    for policy in map(_Policy, policies):
        found.append(policy.selector)
        for direction, peers in ((INGRESS, "from"), (EGRESS, "to")):
            for rule in policy.rules[direction]:
                found += [_selector(peer.get("podSelector")) for peer in rule.get(peers) or () if "ipBlock" not in peer]
    return tuple(dict.fromkeys(found))


class _Policy:
    def __init__(self, policy: Object) -> None:
        spec = policy["spec"]
        self.namespace: str = policy["metadata"]["namespace"]
        self.selector = _selector(spec.get("podSelector"))
        self.rules: dict[str, list[Object]] = {INGRESS: spec.get("ingress") or [], EGRESS: spec.get("egress") or []}
        self.types: list[str] = spec.get("policyTypes") or [INGRESS, *([EGRESS] if spec.get("egress") else [])]

    def names_ports(self, direction: str) -> bool:
        ports = (port for rule in self.rules[direction] for port in rule.get("ports") or ())
        return any(isinstance(port.get("port"), str) for port in ports)


@dataclass(slots=True)
class _Known:
    """What was found out about a pod: its chains by direction, and by the name of a set whether it is in it."""

    endpoint: Endpoint
    chains: dict[str, str] = field(default_factory=dict)
    chosen: dict[str, bool] = field(default_factory=dict)


class Compiler:
    """Of policies that stay as they are, for pods that come and go; ``namespaces`` are the labels of each.

    What was found out about a pod is kept as long as it is there, so that one pod more is the work of one pod, among
    however many. Pods with the same policies have the same chain, which is made once. Only where a policy gives peers'
    ports by name does every pod's chain depend on all pods, and then all is done again every time."""

    def __init__(self, policies: Iterable[Object], namespaces: Mapping[str, Mapping[str, str]]) -> None:
        self.namespaces = namespaces
        self._policies: dict[str, list[_Policy]] = {}  # by namespace
        for policy in map(_Policy, policies):
            self._policies.setdefault(policy.namespace, []).append(policy)
        everyone = [policy for policies in self._policies.values() for policy in policies]
        self._depends_on_all = any(policy.names_ports(EGRESS) for policy in everyone)
        self._known: dict[str, _Known] = {}  # by address
        self._rules_of: dict[str, tuple[Rule, ...]] = {}  # by the name of a chain
        self._chain_of: dict[object, str] = {}  # by direction, policies and, if it matters, ports
        self._choices: dict[str, Callable[[Endpoint], bool]] = {}  # by the name of a set: who is in it
        self._port_sets: dict[str, frozenset[str]] = {}  # sets of those who have a port of a name

    @property
    def endpoints(self) -> Iterable[Endpoint]:
        return (known.endpoint for known in self._known.values())

    def compile(self, endpoints: Iterable[Endpoint]) -> Firewall:
        if self._depends_on_all:
            for memory in (self._known, self._chain_of, self._rules_of, self._port_sets):
                memory.clear()
        before = self._known
        self._known = {}
        for endpoint in endpoints:
            known = before.get(endpoint.address)
            is_same = known is not None and known.endpoint is endpoint
            self._known[endpoint.address] = known if known is not None and is_same else _Known(endpoint)
        for known in self._known.values():
            if not known.chains:
                known.chains = self._chains(known.endpoint)
        ingress, egress = (
            {address: known.chains[direction] for address, known in self._known.items()}
            for direction in (INGRESS, EGRESS)
        )
        used = dict.fromkeys([*ingress.values(), *egress.values()])
        chains = {name: self._rules_of[name] for name in used if name != OPEN}
        peers = [rule.peer for rules in chains.values() for rule in rules if isinstance(rule.peer, str)]
        return Firewall(chains, {name: self._members(name) for name in dict.fromkeys(peers)}, ingress, egress)

    def _chains(self, endpoint: Endpoint) -> dict[str, str]:
        policies = self._policies.get(endpoint.namespace, ())
        selecting = [policy for policy in policies if policy.selector.matches(endpoint.labels)]
        return {direction: self._chain(direction, selecting, endpoint) for direction in (INGRESS, EGRESS)}

    def _chain(self, direction: str, policies: list[_Policy], endpoint: Endpoint) -> str:
        restricting = [policy for policy in policies if direction in policy.types]
        if not restricting:
            return OPEN
        has_names = any(policy.names_ports(direction) for policy in restricting)
        ports = frozenset(endpoint.ports.items()) if has_names else None
        key = direction, tuple(map(id, restricting)), ports
        if key not in self._chain_of:
            rules: list[Rule] = []
            for policy in restricting:
                for rule in policy.rules[direction]:
                    rules += self._rules(direction, policy.namespace, rule, endpoint)
            unique = tuple(dict.fromkeys(rules))
            name = _name("in" if direction == INGRESS else "out", unique)
            self._chain_of[key], self._rules_of[name] = name, unique
        return self._chain_of[key]

    def _members(self, name: str) -> frozenset[str]:
        """The addresses in a set."""
        if name in self._port_sets:
            return self._port_sets[name]
        return frozenset(address for address, known in self._known.items() if self._is_chosen(known, name))

    def _is_chosen(self, known: _Known, name: str) -> bool:
        if name not in known.chosen:
            known.chosen[name] = self._choices[name](known.endpoint)
        return known.chosen[name]

    def _rules(self, direction: str, namespace: str, rule: Object, endpoint: Endpoint) -> Iterable[Rule]:
        peers: list[Object] = rule.get("from" if direction == INGRESS else "to") or []
        ports: list[Object] = rule.get("ports") or []
        numbered = tuple(port for each in ports if (port := _numbered(each)) is not None)
        named = [(_protocol(each), each["port"]) for each in ports if isinstance(each.get("port"), str)]
        if direction == INGRESS:  # the name is of the pod that the policy is about
            numbered += tuple(port for wanted in named if (port := _find(endpoint, *wanted)) is not None)
            named = []
        everyone: list[Object | None] = [*peers] or [None]
        if numbered or not ports:
            for peer in everyone:
                yield Rule(self._peer(direction, namespace, peer), numbered)
        for protocol, name in named:  # the name is of the peer, and may be another port in each
            for peer in everyone:
                yield from self._rules_by_name(namespace, peer, protocol, name)

    def _rules_by_name(self, namespace: str, peer: Object | None, protocol: str, name: str) -> Iterable[Rule]:
        by_port: dict[Port, list[Endpoint]] = {}
        chosen = None if peer is None else self._choose(namespace, peer)
        for endpoint in self.endpoints:
            if chosen is not None and not self._choices[chosen](endpoint):
                continue
            if (port := _find(endpoint, protocol, name)) is not None:
                by_port.setdefault(port, []).append(endpoint)
        for port, endpoints in by_port.items():
            key = _name("port", (namespace, repr(peer), protocol, name, port))
            self._port_sets[key] = frozenset(endpoint.address for endpoint in endpoints)
            yield Rule(key, (port,))

    def _peer(self, direction: str, namespace: str, peer: Object | None) -> Block | str | None:
        if peer is None:
            return None
        if (block := peer.get("ipBlock")) is not None:
            cidr, excepted = block["cidr"], tuple(block.get("except") or ())
            return Block(cidr, egress_exceptions(cidr, excepted) if direction == EGRESS else excepted)
        return self._choose(namespace, peer)

    def _choose(self, namespace: str, peer: Object) -> str:
        """The name of the set of those who are chosen."""
        in_namespaces = peer.get("namespaceSelector")
        key = _name("peer", (repr(peer), namespace if in_namespaces is None else ""))
        if key not in self._choices:
            block = peer.get("ipBlock")
            self._choices[key] = self._choice(namespace, peer) if block is None else _within(block)
        return key

    def _choice(self, namespace: str, peer: Object) -> Callable[[Endpoint], bool]:
        in_namespaces = peer.get("namespaceSelector")
        pods = _selector(peer.get("podSelector"))
        if in_namespaces is None:
            return lambda endpoint: endpoint.namespace == namespace and pods.matches(endpoint.labels)
        spaces = _selector(in_namespaces)
        return lambda endpoint: (
            spaces.matches(self.namespaces.get(endpoint.namespace)) and pods.matches(endpoint.labels)
        )


def _within(block: Object) -> Callable[[Endpoint], bool]:
    network, holes = ip_network(block["cidr"]), [ip_network(hole) for hole in block.get("except") or ()]

    def is_within(endpoint: Endpoint) -> bool:
        address = ip_address(endpoint.address)
        return address in network and not any(address in hole for hole in holes)

    return is_within


def _selector(selector: Mapping[str, Any] | None) -> LabelSelector:
    """In a NetworkPolicy a selector that says nothing selects everything."""
    chosen = LabelSelector.from_object(selector or {})
    assert chosen is not None
    return chosen


def _protocol(port: Object) -> str:
    return str(port.get("protocol") or "TCP").lower()


def _numbered(port: Object) -> Port | None:
    number = port.get("port")
    if isinstance(number, str):
        return None
    return Port(_protocol(port), number or 0, port.get("endPort") or number or 0)


def _find(endpoint: Endpoint, protocol: str, name: str) -> Port | None:
    port = endpoint.ports.get(name)
    return port if port is not None and port.protocol == protocol else None


def _name(kind: str, content: object) -> str:
    """The same for the same content, and short enough for the kernel."""
    return f"{kind}_{hashlib.sha256(repr(content).encode()).hexdigest()[:16]}"
