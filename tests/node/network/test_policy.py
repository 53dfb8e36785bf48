from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sandpool.api.resource import Object
from sandpool.node.network.policy import EGRESS, INGRESS, OPEN, Block, Endpoint, Firewall, Port, Rule, compile_policies

NAMESPACES = {"red": {"team": "red"}, "blue": {"team": "blue"}}
WEB = Endpoint("red", "web", "10.0.0.10", {"app": "web"}, {"http": Port("tcp", 8080, 8080)})
DB = Endpoint("red", "db", "10.0.0.11", {"app": "db"}, {"http": Port("tcp", 9090, 9090)})
OTHER = Endpoint("blue", "web", "10.0.0.20", {"app": "web"})
PODS = (WEB, DB, OTHER)


def policy(selector: Object, namespace: str = "red", types: list[str] | None = None, **rules: Any) -> Object:
    spec = {"podSelector": selector, **rules}
    if types is not None:
        spec["policyTypes"] = types
    return {"metadata": {"namespace": namespace, "name": "policy"}, "spec": spec}


def allows(firewall: Firewall, source: str, target: str, port: int, protocol: str = "tcp") -> bool:
    """What the tables say, read as the firewall reads them."""
    out, into = firewall.egress.get(source), firewall.ingress.get(target)
    if source in firewall.egress and not _lets(firewall, out, target, port, protocol):
        return False
    return target not in firewall.ingress or _lets(firewall, into, source, port, protocol)


def _lets(firewall: Firewall, chain: str | None, peer: str, port: int, protocol: str) -> bool:
    if chain == OPEN:
        return True
    assert chain is not None
    return any(_matches(firewall, rule, peer, port, protocol) for rule in firewall.chains[chain])


def _matches(firewall: Firewall, rule: Rule, peer: str, port: int, protocol: str) -> bool:
    if rule.ports and not any(
        each.protocol == protocol and (each.first == 0 or each.first <= port <= each.last) for each in rule.ports
    ):
        return False
    if rule.peer is None:
        return True
    if isinstance(rule.peer, Block):
        address = ip_address(peer)
        return address in ip_network(rule.peer.cidr) and not any(address in ip_network(h) for h in rule.peer.holes)
    return peer in firewall.sets[rule.peer]


def test_without_policies_everything_is_open() -> None:
    firewall = compile_policies([], PODS, NAMESPACES)
    assert set(firewall.ingress.values()) == set(firewall.egress.values()) == {OPEN}
    assert allows(firewall, WEB.address, OTHER.address, 80)


def test_a_policy_without_rules_closes_its_directions_for_who_is_selected() -> None:
    firewall = compile_policies([policy({"matchLabels": {"app": "db"}}, types=[INGRESS])], PODS, NAMESPACES)
    assert not allows(firewall, WEB.address, DB.address, 80)
    assert allows(firewall, DB.address, WEB.address, 80)
    assert allows(firewall, WEB.address, OTHER.address, 80)


def test_what_any_policy_allows_is_allowed() -> None:
    closed = policy({}, types=[INGRESS])
    to_db = policy(
        {"matchLabels": {"app": "db"}}, ingress=[{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}]}]
    )
    firewall = compile_policies([closed, to_db], PODS, NAMESPACES)
    assert allows(firewall, WEB.address, DB.address, 80)
    assert not allows(firewall, OTHER.address, DB.address, 80), "a pod selector alone is about the policy's namespace"
    assert not allows(firewall, DB.address, WEB.address, 80)


def test_peers_in_other_namespaces_are_chosen_by_the_labels_of_both() -> None:
    peer = {"namespaceSelector": {"matchLabels": {"team": "blue"}}, "podSelector": {"matchLabels": {"app": "web"}}}
    firewall = compile_policies([policy({}, ingress=[{"from": [peer]}])], PODS, NAMESPACES)
    assert allows(firewall, OTHER.address, DB.address, 80)
    assert not allows(firewall, WEB.address, DB.address, 80)


def test_blocks_have_holes() -> None:
    internet = {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8", "169.254.0.0/16"]}}
    firewall = compile_policies([policy({}, types=[EGRESS], egress=[{"to": [internet]}])], PODS, NAMESPACES)
    assert allows(firewall, WEB.address, "192.0.2.7", 443)
    assert not allows(firewall, WEB.address, "169.254.169.254", 80)
    assert not allows(firewall, WEB.address, OTHER.address, 80)


def test_ports_are_numbers_ranges_or_whole_protocols() -> None:
    ports = [{"port": 80}, {"port": 100, "endPort": 200, "protocol": "TCP"}, {"protocol": "UDP"}]
    firewall = compile_policies([policy({}, types=[EGRESS], egress=[{"ports": ports}])], PODS, NAMESPACES)
    assert allows(firewall, WEB.address, "192.0.2.7", 80)
    assert allows(firewall, WEB.address, "192.0.2.7", 150)
    assert not allows(firewall, WEB.address, "192.0.2.7", 201)
    assert allows(firewall, WEB.address, "192.0.2.7", 201, "udp")


def test_a_named_port_of_who_is_reached_is_its_own() -> None:
    firewall = compile_policies([policy({}, ingress=[{"ports": [{"port": "http"}]}])], PODS, NAMESPACES)
    assert allows(firewall, OTHER.address, WEB.address, 8080)
    assert not allows(firewall, OTHER.address, WEB.address, 9090)
    assert allows(firewall, OTHER.address, DB.address, 9090)
    nameless = compile_policies([policy({}, "blue", ingress=[{"ports": [{"port": "http"}]}])], PODS, NAMESPACES)
    assert not allows(nameless, WEB.address, OTHER.address, 8080)


def test_a_named_port_of_a_peer_is_the_peers() -> None:
    rule = {"to": [{"podSelector": {}}], "ports": [{"port": "http"}]}
    firewall = compile_policies([policy({}, types=[EGRESS], egress=[rule])], PODS, NAMESPACES)
    assert allows(firewall, DB.address, WEB.address, 8080)
    assert not allows(firewall, DB.address, WEB.address, 9090)
    assert allows(firewall, WEB.address, DB.address, 9090)


def test_pods_with_the_same_policies_share_a_chain() -> None:
    many = [Endpoint("red", f"pod-{n}", f"10.0.1.{n}", {"app": "web"}) for n in range(50)]
    rules = [{"from": [{"podSelector": {"matchLabels": {"app": "router"}}}]}]
    firewall = compile_policies([policy({}, ingress=rules)], many, NAMESPACES)
    assert len(firewall.chains) == len(firewall.sets) == len(set(firewall.ingress.values())) == 1


LABELS = st.dictionaries(st.sampled_from("ab"), st.sampled_from("xy"), max_size=2)
SELECTORS = st.builds(lambda labels: {"matchLabels": labels}, LABELS)
PEERS = st.one_of(
    st.builds(lambda pods: {"podSelector": pods}, SELECTORS),
    st.builds(lambda spaces: {"namespaceSelector": spaces}, SELECTORS),
    st.builds(lambda spaces, pods: {"namespaceSelector": spaces, "podSelector": pods}, SELECTORS, SELECTORS),
    st.sampled_from(
        [{"ipBlock": {"cidr": "10.0.0.0/28"}}, {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.4/30"]}}]
    ),
)
PORTS = st.lists(
    st.sampled_from([{"port": 80}, {"port": "web"}, {"protocol": "UDP"}, {"port": 1, "endPort": 90}]), max_size=2
)
RULES = st.lists(st.tuples(st.lists(PEERS, max_size=2), PORTS), max_size=2)
POLICIES = st.lists(
    st.tuples(st.sampled_from(["n0", "n1"]), SELECTORS, st.sets(st.sampled_from([INGRESS, EGRESS])), RULES, RULES),
    max_size=4,
)


@given(POLICIES, st.lists(st.tuples(st.sampled_from(["n0", "n1"]), LABELS, st.booleans()), min_size=2, max_size=6))
def test_the_tables_say_what_the_api_promises(
    policies: list[tuple[Any, ...]], pods: list[tuple[str, dict[str, str], bool]]
) -> None:
    namespaces = {"n0": {"a": "x"}, "n1": {"a": "y"}}
    endpoints = [
        Endpoint(space, f"p{n}", f"10.0.0.{n + 1}", labels, {"web": Port("tcp", 80, 80)} if named else {})
        for n, (space, labels, named) in enumerate(pods)
    ]
    objects = [
        policy(
            selector,
            space,
            sorted(types),
            ingress=[{"from": peers, "ports": ports} for peers, ports in into],
            egress=[{"to": peers, "ports": ports} for peers, ports in out],
        )
        for space, selector, types, into, out in policies
        if types
    ]
    firewall = compile_policies(objects, endpoints, namespaces)
    for source in endpoints:
        for target in endpoints:
            for port, protocol in ((80, "tcp"), (85, "tcp"), (95, "tcp"), (95, "udp")):
                expected = _promised(objects, namespaces, source, target, port, protocol)
                assert allows(firewall, source.address, target.address, port, protocol) is expected


def _promised(
    policies: list[Object],
    namespaces: dict[str, dict[str, str]],
    source: Endpoint,
    target: Endpoint,
    port: int,
    protocol: str,
) -> bool:
    """The rules of NetworkPolicy, told as naively as possible."""

    def fits(selector: Object | None, labels: Any) -> bool:
        return bool(((selector or {}).get("matchLabels") or {}).items() <= labels.items())

    def is_peer(peer: Object, end: Endpoint, home: str) -> bool:
        if "ipBlock" in peer:
            block, address = peer["ipBlock"], ip_address(end.address)
            return address in ip_network(block["cidr"]) and all(
                address not in ip_network(hole) for hole in block.get("except", ())
            )
        if "namespaceSelector" in peer:
            if not fits(peer["namespaceSelector"], namespaces[end.namespace]):
                return False
        elif end.namespace != home:
            return False
        return fits(peer.get("podSelector"), end.labels)

    def is_port(wanted: Object) -> bool:
        if wanted.get("protocol", "TCP").lower() != protocol:
            return False
        if isinstance(wanted.get("port"), str):
            return target.ports.get(wanted["port"]) == Port(protocol, port, port)
        if "port" not in wanted:
            return True
        first: int = wanted["port"]
        last: int = wanted.get("endPort") or first
        return first <= port <= last

    def direction(kind: str, subject: Endpoint, other: Endpoint) -> bool:
        mine = [
            each
            for each in policies
            if each["metadata"]["namespace"] == subject.namespace
            and kind in each["spec"]["policyTypes"]
            and fits(each["spec"]["podSelector"], subject.labels)
        ]
        word, ends = ("ingress", "from") if kind == INGRESS else ("egress", "to")
        return not mine or any(
            (not rule[ends] or any(is_peer(peer, other, each["metadata"]["namespace"]) for peer in rule[ends]))
            and (not rule["ports"] or any(map(is_port, rule["ports"])))
            for each in mine
            for rule in each["spec"][word]
        )

    return direction(EGRESS, source, target) and direction(INGRESS, target, source)
