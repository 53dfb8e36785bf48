"""Compiles NetworkPolicies and pods into the tables of a firewall.

Pods with the same policies share a chain, and a pod is an entry in a map from its address to that chain. A template
with a thousand sandboxes is one chain and a thousand entries, and one more sandbox is one more entry. Peers selected by
labels are named sets of addresses, shared by all rules with the same selector.

The semantics are those of the API: a direction without any policy is open; a direction with policies is closed except
for what any of them allows. A pod that is in no map has no network at all, so nothing is open before its entry exists.
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

#: The chain of pods for which no policy restricts a direction.
OPEN: Final = "open"


class Port(NamedTuple):
    protocol: str  # "tcp", "udp" or "sctp"
    first: int  # 0: any port
    last: int


class IpBlock(NamedTuple):
    """A range of addresses with exceptions."""

    cidr: str
    exceptions: tuple[str, ...]


class Rule(NamedTuple):
    """Allows packets from or to ``peer``: an address block, the name of a set, or (None) any address."""

    peer: IpBlock | str | None
    ports: tuple[Port, ...]  # empty: any port

    @property
    def is_ipv4(self) -> bool:
        return not isinstance(self.peer, IpBlock) or ":" not in self.peer.cidr


@dataclass(frozen=True, slots=True)
class PodEndpoint:
    """A pod as the firewall sees it. ``ports`` are the named ports of its containers."""

    namespace: str
    name: str
    address: str
    labels: Mapping[str, str]
    ports: Mapping[str, Port] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Firewall:
    """``chains`` and ``sets`` by name; ``ingress`` and ``egress`` map a pod's address to its chain."""

    chains: Mapping[str, tuple[Rule, ...]]
    sets: Mapping[str, frozenset[str]]
    ingress: Mapping[str, str]
    egress: Mapping[str, str]


EMPTY_FIREWALL: Final = Firewall({}, {}, {}, {})


def selectors(policies: Iterable[Object]) -> tuple[LabelSelector, ...]:
    """Return all selectors by which policies select pods, as subjects or as peers. Labels that match the same of these
    selectors make no difference to the firewall."""
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
class _CompiledPod:
    """The results for one pod: its chain per direction, and for each set whether the pod is a member."""

    endpoint: PodEndpoint
    chains: dict[str, str] = field(default_factory=dict)
    is_member: dict[str, bool] = field(default_factory=dict)


class PolicyCompiler:
    """Compiles a fixed list of policies for pods that come and go. ``namespaces`` are labels by namespace.

    Results are cached per pod, so one more pod costs the work of one pod, however many there are. The chain of pods
    with the same policies is made once. Only where a policy has peers' ports by name does every chain depend on all
    pods, and then everything is compiled again each time."""

    def __init__(self, policies: Iterable[Object], namespaces: Mapping[str, Mapping[str, str]]) -> None:
        self.namespaces = namespaces
        self._policies: dict[str, list[_Policy]] = {}  # by namespace
        for policy in map(_Policy, policies):
            self._policies.setdefault(policy.namespace, []).append(policy)
        all_policies = [policy for policies in self._policies.values() for policy in policies]
        self._depends_on_all = any(policy.names_ports(EGRESS) for policy in all_policies)
        self._pods: dict[str, _CompiledPod] = {}  # by address
        self._rules_of: dict[str, tuple[Rule, ...]] = {}  # by chain name
        self._chain_of: dict[object, str] = {}  # by direction, policies and, where policies name ports, named ports
        self._membership: dict[str, Callable[[PodEndpoint], bool]] = {}  # by set name
        self._port_sets: dict[str, frozenset[str]] = {}  # addresses of pods with a named port, by set name

    @property
    def endpoints(self) -> Iterable[PodEndpoint]:
        return (pod.endpoint for pod in self._pods.values())

    def compile(self, endpoints: Iterable[PodEndpoint]) -> Firewall:
        if self._depends_on_all:
            for cache in (self._pods, self._chain_of, self._rules_of, self._port_sets):
                cache.clear()
        before = self._pods
        self._pods = {}
        for endpoint in endpoints:
            pod = before.get(endpoint.address)
            is_same = pod is not None and pod.endpoint is endpoint
            self._pods[endpoint.address] = pod if pod is not None and is_same else _CompiledPod(endpoint)
        for pod in self._pods.values():
            if not pod.chains:
                pod.chains = self._chains(pod.endpoint)
        ingress, egress = (
            {address: pod.chains[direction] for address, pod in self._pods.items()} for direction in (INGRESS, EGRESS)
        )
        used = dict.fromkeys([*ingress.values(), *egress.values()])
        chains = {name: self._rules_of[name] for name in used if name != OPEN}
        peers = [rule.peer for rules in chains.values() for rule in rules if isinstance(rule.peer, str)]
        return Firewall(chains, {name: self._members(name) for name in dict.fromkeys(peers)}, ingress, egress)

    def _chains(self, endpoint: PodEndpoint) -> dict[str, str]:
        policies = self._policies.get(endpoint.namespace, ())
        selecting = [policy for policy in policies if policy.selector.matches(endpoint.labels)]
        return {direction: self._chain(direction, selecting, endpoint) for direction in (INGRESS, EGRESS)}

    def _chain(self, direction: str, policies: list[_Policy], endpoint: PodEndpoint) -> str:
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
        return frozenset(address for address, pod in self._pods.items() if self._is_member(pod, name))

    def _is_member(self, pod: _CompiledPod, name: str) -> bool:
        if name not in pod.is_member:
            pod.is_member[name] = self._membership[name](pod.endpoint)
        return pod.is_member[name]

    def _rules(self, direction: str, namespace: str, rule: Object, endpoint: PodEndpoint) -> Iterable[Rule]:
        peers: list[Object] = rule.get("from" if direction == INGRESS else "to") or []
        ports: list[Object] = rule.get("ports") or []
        numbered = tuple(port for each in ports if (port := _numbered(each)) is not None)
        named = [(_protocol(each), each["port"]) for each in ports if isinstance(each.get("port"), str)]
        if direction == INGRESS:  # the port name refers to the selected pod
            numbered += tuple(port for wanted in named if (port := _find(endpoint, *wanted)) is not None)
            named = []
        peers_or_any: list[Object | None] = [*peers] or [None]
        if numbered or not ports:
            for peer in peers_or_any:
                yield Rule(self._peer(direction, namespace, peer), numbered)
        for protocol, name in named:  # the port name refers to the peer, and may be a different port in each
            for peer in peers_or_any:
                yield from self._rules_by_name(namespace, peer, protocol, name)

    def _rules_by_name(self, namespace: str, peer: Object | None, protocol: str, name: str) -> Iterable[Rule]:
        by_port: dict[Port, list[PodEndpoint]] = {}
        selected = None if peer is None else self._peer_set(namespace, peer)
        for endpoint in self.endpoints:
            if selected is not None and not self._membership[selected](endpoint):
                continue
            if (port := _find(endpoint, protocol, name)) is not None:
                by_port.setdefault(port, []).append(endpoint)
        for port, endpoints in by_port.items():
            key = _name("port", (namespace, repr(peer), protocol, name, port))
            self._port_sets[key] = frozenset(endpoint.address for endpoint in endpoints)
            yield Rule(key, (port,))

    def _peer(self, direction: str, namespace: str, peer: Object | None) -> IpBlock | str | None:
        if peer is None:
            return None
        if (block := peer.get("ipBlock")) is not None:
            cidr, excepted = block["cidr"], tuple(block.get("except") or ())
            return IpBlock(cidr, egress_exceptions(cidr, excepted) if direction == EGRESS else excepted)
        return self._peer_set(namespace, peer)

    def _peer_set(self, namespace: str, peer: Object) -> str:
        """The name of the set of pods that a peer selects."""
        in_namespaces = peer.get("namespaceSelector")
        key = _name("peer", (repr(peer), namespace if in_namespaces is None else ""))
        if key not in self._membership:
            block = peer.get("ipBlock")
            self._membership[key] = self._selects(namespace, peer) if block is None else _is_within(block)
        return key

    def _selects(self, namespace: str, peer: Object) -> Callable[[PodEndpoint], bool]:
        in_namespaces = peer.get("namespaceSelector")
        pods = _selector(peer.get("podSelector"))
        if in_namespaces is None:
            return lambda endpoint: endpoint.namespace == namespace and pods.matches(endpoint.labels)
        spaces = _selector(in_namespaces)
        return lambda endpoint: (
            spaces.matches(self.namespaces.get(endpoint.namespace)) and pods.matches(endpoint.labels)
        )


def _is_within(block: Object) -> Callable[[PodEndpoint], bool]:
    network, exceptions = ip_network(block["cidr"]), [ip_network(hole) for hole in block.get("except") or ()]

    def is_within(endpoint: PodEndpoint) -> bool:
        address = ip_address(endpoint.address)
        return address in network and not any(address in hole for hole in exceptions)

    return is_within


def _selector(selector: Mapping[str, Any] | None) -> LabelSelector:
    """Parse a selector of a NetworkPolicy, in which an empty selector selects everything."""
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


def _find(endpoint: PodEndpoint, protocol: str, name: str) -> Port | None:
    port = endpoint.ports.get(name)
    return port if port is not None and port.protocol == protocol else None


def _name(kind: str, content: object) -> str:
    """A name derived from content, short enough for the kernel."""
    return f"{kind}_{hashlib.sha256(repr(content).encode()).hexdigest()[:16]}"
