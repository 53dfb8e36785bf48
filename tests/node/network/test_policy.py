from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Any
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from sandpool.api.resource import Object
from sandpool.kube.selectors import LabelSelector
from sandpool.node.network.policy import (
    EGRESS,
    INGRESS,
    OPEN,
    Firewall,
    IpBlock,
    PodEndpoint,
    PolicyCompiler,
    Port,
    Rule,
)

NAMESPACES = {"red": {"team": "red"}, "blue": {"team": "blue"}}
WEB = PodEndpoint("red", "web", "10.0.0.10", {"app": "web"}, {"http": Port("tcp", 8080, 8080)})
DB = PodEndpoint("red", "db", "10.0.0.11", {"app": "db"}, {"http": Port("tcp", 9090, 9090)})
OTHER = PodEndpoint("blue", "web", "10.0.0.20", {"app": "web"})
PODS = (WEB, DB, OTHER)


def policy(selector: Object, namespace: str = "red", types: list[str] | None = None, **rules: Any) -> Object:
    spec = {"podSelector": selector, **rules}
    if types is not None:
        spec["policyTypes"] = types
    return {"metadata": {"namespace": namespace, "name": "policy"}, "spec": spec}


def allows(firewall: Firewall, source: str, target: str, port: int, protocol: str = "tcp") -> bool:
    """Evaluate the compiled tables as the firewall does."""
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
    if isinstance(rule.peer, IpBlock):
        address = ip_address(peer)
        return address in ip_network(rule.peer.cidr) and not any(address in ip_network(h) for h in rule.peer.exceptions)
    return peer in firewall.sets[rule.peer]


def test_everything_is_allowed_without_policies() -> None:
    firewall = PolicyCompiler([], NAMESPACES).compile(PODS)
    assert set(firewall.ingress.values()) == set(firewall.egress.values()) == {OPEN}
    assert allows(firewall, WEB.address, OTHER.address, 80)


def test_policy_without_rules_closes_its_directions_for_selected_pods() -> None:
    firewall = PolicyCompiler([policy({"matchLabels": {"app": "db"}}, types=[INGRESS])], NAMESPACES).compile(PODS)
    assert not allows(firewall, WEB.address, DB.address, 80)
    assert allows(firewall, DB.address, WEB.address, 80)
    assert allows(firewall, WEB.address, OTHER.address, 80)


def test_rules_of_several_policies_add_up() -> None:
    closed = policy({}, types=[INGRESS])
    to_db = policy(
        {"matchLabels": {"app": "db"}}, ingress=[{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}]}]
    )
    firewall = PolicyCompiler([closed, to_db], NAMESPACES).compile(PODS)
    assert allows(firewall, WEB.address, DB.address, 80)
    assert not allows(firewall, OTHER.address, DB.address, 80), "a pod selector alone is about the policy's namespace"
    assert not allows(firewall, DB.address, WEB.address, 80)


def test_peers_in_other_namespaces_are_selected_by_both_labels() -> None:
    peer = {"namespaceSelector": {"matchLabels": {"team": "blue"}}, "podSelector": {"matchLabels": {"app": "web"}}}
    firewall = PolicyCompiler([policy({}, ingress=[{"from": [peer]}])], NAMESPACES).compile(PODS)
    assert allows(firewall, OTHER.address, DB.address, 80)
    assert not allows(firewall, WEB.address, DB.address, 80)


def test_ip_blocks_have_exceptions() -> None:
    internet = {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8", "169.254.0.0/16"]}}
    firewall = PolicyCompiler([policy({}, types=[EGRESS], egress=[{"to": [internet]}])], NAMESPACES).compile(PODS)
    assert allows(firewall, WEB.address, "192.0.2.7", 443)
    assert not allows(firewall, WEB.address, "169.254.169.254", 80)
    assert not allows(firewall, WEB.address, OTHER.address, 80)


def test_ports_are_numbers_ranges_or_whole_protocols() -> None:
    ports = [{"port": 80}, {"port": 100, "endPort": 200, "protocol": "TCP"}, {"protocol": "UDP"}]
    firewall = PolicyCompiler([policy({}, types=[EGRESS], egress=[{"ports": ports}])], NAMESPACES).compile(PODS)
    assert allows(firewall, WEB.address, "192.0.2.7", 80)
    assert allows(firewall, WEB.address, "192.0.2.7", 150)
    assert not allows(firewall, WEB.address, "192.0.2.7", 201)
    assert allows(firewall, WEB.address, "192.0.2.7", 201, "udp")


def test_named_ingress_port_is_that_of_the_target() -> None:
    firewall = PolicyCompiler([policy({}, ingress=[{"ports": [{"port": "http"}]}])], NAMESPACES).compile(PODS)
    assert allows(firewall, OTHER.address, WEB.address, 8080)
    assert not allows(firewall, OTHER.address, WEB.address, 9090)
    assert allows(firewall, OTHER.address, DB.address, 9090)
    nameless = PolicyCompiler([policy({}, "blue", ingress=[{"ports": [{"port": "http"}]}])], NAMESPACES).compile(PODS)
    assert not allows(nameless, WEB.address, OTHER.address, 8080)


def test_named_egress_port_is_that_of_the_peer() -> None:
    rule = {"to": [{"podSelector": {}}], "ports": [{"port": "http"}]}
    firewall = PolicyCompiler([policy({}, types=[EGRESS], egress=[rule])], NAMESPACES).compile(PODS)
    assert allows(firewall, DB.address, WEB.address, 8080)
    assert not allows(firewall, DB.address, WEB.address, 9090)
    assert allows(firewall, WEB.address, DB.address, 9090)


def test_pods_with_the_same_policies_share_a_chain() -> None:
    many = [PodEndpoint("red", f"pod-{n}", f"10.0.1.{n}", {"app": "web"}) for n in range(50)]
    rules = [{"from": [{"podSelector": {"matchLabels": {"app": "router"}}}]}]
    firewall = PolicyCompiler([policy({}, ingress=rules)], NAMESPACES).compile(many)
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
def test_compiled_tables_match_the_semantics_of_the_api(
    policies: list[tuple[Any, ...]], pods: list[tuple[str, dict[str, str], bool]]
) -> None:
    namespaces = {"n0": {"a": "x"}, "n1": {"a": "y"}}
    endpoints, objects = _endpoints(pods), _objects(policies)
    firewall = PolicyCompiler(objects, namespaces).compile(endpoints)
    for source in endpoints:
        for target in endpoints:
            for port, protocol in ((80, "tcp"), (85, "tcp"), (95, "tcp"), (95, "udp")):
                expected = _promised(objects, namespaces, source, target, port, protocol)
                assert allows(firewall, source.address, target.address, port, protocol) is expected


@given(
    POLICIES,
    st.lists(st.tuples(st.sampled_from(["n0", "n1"]), LABELS, st.booleans()), min_size=2, max_size=6),
    st.lists(st.sets(st.integers(0, 5)), max_size=4),
)
def test_incremental_compilation_equals_a_full_one(
    policies: list[tuple[Any, ...]], pods: list[tuple[str, dict[str, str], bool]], steps: list[set[int]]
) -> None:
    namespaces = {"n0": {"a": "x"}, "n1": {"a": "y"}}
    endpoints, objects = _endpoints(pods), _objects(policies)
    compiler = PolicyCompiler(objects, namespaces)
    for there in steps:
        some = [endpoint for number, endpoint in enumerate(endpoints) if number in there]
        assert compiler.compile(some) == PolicyCompiler(objects, namespaces).compile(some)
    # One that is another now, at the same address.
    changed = [replace(endpoints[0], labels={"a": "z"}, ports={}), *endpoints[1:]]
    assert compiler.compile(changed) == PolicyCompiler(objects, namespaces).compile(changed)


def test_additional_pod_costs_the_work_of_one_pod() -> None:
    peer = {"podSelector": {"matchLabels": {"app": "web"}}}
    closed = policy({}, ingress=[{"from": [peer]}], types=[INGRESS, EGRESS])
    many = [PodEndpoint("red", f"p{n}", f"10.1.{n // 200}.{n % 200}", {"app": "web", "n": str(n)}) for n in range(1000)]
    compiler = PolicyCompiler([closed], NAMESPACES)
    compiler.compile(many[:-1])
    with patch.object(LabelSelector, "matches", autospec=True, side_effect=LabelSelector.matches) as asked:
        assert len(compiler.compile(many).ingress) == 1000
    assert asked.call_count == 2, "the pods it selects, and the pods it admits"


def _endpoints(pods: list[tuple[str, dict[str, str], bool]]) -> list[PodEndpoint]:
    return [
        PodEndpoint(space, f"p{n}", f"10.0.0.{n + 1}", labels, {"web": Port("tcp", 80, 80)} if named else {})
        for n, (space, labels, named) in enumerate(pods)
    ]


def _objects(policies: list[tuple[Any, ...]]) -> list[Object]:
    return [
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


def _promised(
    policies: list[Object],
    namespaces: dict[str, dict[str, str]],
    source: PodEndpoint,
    target: PodEndpoint,
    port: int,
    protocol: str,
) -> bool:
    """The rules of NetworkPolicy, told as naively as possible."""

    def fits(selector: Object | None, labels: Any) -> bool:
        return bool(((selector or {}).get("matchLabels") or {}).items() <= labels.items())

    def is_peer(peer: Object, end: PodEndpoint, home: str) -> bool:
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

    def direction(kind: str, subject: PodEndpoint, other: PodEndpoint) -> bool:
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
