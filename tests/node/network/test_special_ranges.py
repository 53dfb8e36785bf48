"""Sandboxes under the default policy of a template reach the public internet and no special-purpose address."""

from __future__ import annotations

from ipaddress import IPv4Network, ip_address, ip_network

import pytest

from sandpool.api.kinds import SANDBOX_TEMPLATE
from sandpool.api.resource import Object
from sandpool.api.views import TemplateView
from sandpool.controllers.template.plan import network_policy_spec
from sandpool.node.network import ruleset
from sandpool.node.network.policy import IpBlock, PodEndpoint, PolicyCompiler
from sandpool.node.network.special_ranges import egress_exceptions, without_overlaps
from sandpool.testing.objects import new

# https://www.iana.org/assignments/iana-ipv4-special-registry, and multicast.
IPV4_REGISTRY = (
    "0.0.0.0/8", "0.0.0.0/32", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
    "192.0.0.0/24", "192.0.0.0/29", "192.0.0.8/32", "192.0.0.9/32", "192.0.0.10/32", "192.0.0.170/32",
    "192.0.0.171/32", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.88.99.2/32",
    "192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4",
    "240.0.0.0/4", "255.255.255.255/32",
)  # fmt: skip
# https://www.iana.org/assignments/iana-ipv6-special-registry, and multicast.
IPV6_REGISTRY = (
    "::1/128", "::/128", "::ffff:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "100:0:0:1::/64", "2001::/23",
    "2001::/32", "2001:1::1/128", "2001:1::2/128", "2001:1::3/128", "2001:2::/48", "2001:3::/32", "2001:4:112::/48",
    "2001:10::/28", "2001:20::/28", "2001:30::/28", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20",
    "5f00::/16", "fc00::/7", "fe80::/10", "ff00::/8",
)  # fmt: skip
PUBLIC = ("1.1.1.1", "8.8.8.8", "9.255.255.255", "100.63.255.255", "100.128.0.0", "126.255.255.255", "223.255.255.255")
PUBLIC_V6 = ("2001:4860:4860::8888", "2606:4700::1111", "2a00::1")
POD = PodEndpoint("default", "pod", "10.231.0.8", {"agents.x-k8s.io/sandbox-template-ref-hash": "any"})


def default_policy() -> Object:
    template = new(SANDBOX_TEMPLATE, "template", spec={"podTemplate": {"spec": {"containers": []}}})
    return network_policy_spec(TemplateView.from_object(template))


def default_egress() -> dict[str, IpBlock]:
    """The blocks that the node enforces for the default policy, by CIDR."""
    spec = default_policy()
    policy = {"metadata": {"namespace": "default", "name": "policy"}, "spec": {**spec, "podSelector": {}}}
    firewall = PolicyCompiler([policy], {"default": {}}).compile([POD])
    rules = firewall.chains[firewall.egress[POD.address]]
    return {rule.peer.cidr: rule.peer for rule in rules if isinstance(rule.peer, IpBlock)}


def is_allowed(block: IpBlock, address: str) -> bool:
    return not any(ip_address(address) in ip_network(hole) for hole in block.exceptions)


@pytest.mark.parametrize(
    ("cidr", "special"),
    [*(("0.0.0.0/0", each) for each in IPV4_REGISTRY), *(("::/0", each) for each in IPV6_REGISTRY)],
)
def test_default_egress_excepts_every_special_purpose_range(cidr: str, special: str) -> None:
    block, network = default_egress()[cidr], ip_network(special)
    for address in (network.network_address, network.broadcast_address):
        assert not is_allowed(block, str(address))
    assert any(network.subnet_of(ip_network(hole)) for hole in block.exceptions)  # type: ignore[arg-type]


@pytest.mark.parametrize(("cidr", "addresses"), [("0.0.0.0/0", PUBLIC), ("::/0", PUBLIC_V6)])
def test_default_egress_allows_public_addresses(cidr: str, addresses: tuple[str, ...]) -> None:
    block = default_egress()[cidr]
    assert [address for address in addresses if not is_allowed(block, address)] == []


def test_policy_object_keeps_the_exceptions_of_the_go_implementation() -> None:
    (rule,) = default_policy()["egress"]
    assert rule["to"] == [
        {
            "ipBlock": {
                "cidr": "0.0.0.0/0",
                "except": ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"],
            }
        },
        {"ipBlock": {"cidr": "::/0", "except": ["fc00::/7", "fe80::/10"]}},
    ]


@pytest.mark.parametrize(
    ("cidr", "excepted"),
    [
        ("0.0.0.0/0", ()),
        ("0.0.0.0/0", ("10.0.0.0/8",)),
        ("100.64.0.0/10", ()),
        ("198.18.0.0/15", ("198.19.0.0/16",)),
        ("::/0", ("fc00::/7",)),
    ],
)
def test_other_blocks_are_used_unchanged(cidr: str, excepted: tuple[str, ...]) -> None:
    assert egress_exceptions(cidr, excepted) == excepted


def test_template_can_allow_a_special_range() -> None:
    spec = default_policy()
    spec["egress"] = [*spec["egress"], {"to": [{"ipBlock": {"cidr": "100.64.7.0/24"}}]}]
    policy = {"metadata": {"namespace": "default", "name": "policy"}, "spec": {**spec, "podSelector": {}}}
    firewall = PolicyCompiler([policy], {"default": {}}).compile([POD])
    rules = firewall.chains[firewall.egress[POD.address]]
    blocks = [rule.peer for rule in rules if isinstance(rule.peer, IpBlock)]
    assert [block.cidr for block in blocks if block.cidr.startswith("100.") and is_allowed(block, "100.64.7.7")]


def test_ingress_blocks_keep_their_exceptions() -> None:
    private = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"]
    rules = [{"from": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": private}}]}]
    spec = {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": rules}
    policy = {"metadata": {"namespace": "default", "name": "policy"}, "spec": spec}
    firewall = PolicyCompiler([policy], {"default": {}}).compile([POD])
    (rule,) = firewall.chains[firewall.ingress[POD.address]]
    assert rule.peer == IpBlock("0.0.0.0/0", tuple(private))


def test_overlapping_exceptions_are_merged_for_nft() -> None:
    """nft refuses a set with overlapping intervals, and the pod would never be connected."""
    block = {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8", "10.1.0.0/16", "11.0.0.0/8"]}
    spec = {"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"to": [{"ipBlock": block}]}]}
    policy = {"metadata": {"namespace": "default", "name": "policy"}, "spec": spec}
    firewall = PolicyCompiler([policy], {"default": {}}).compile([POD])
    assert "ip daddr != { 10.0.0.0/7 }" in ruleset.full_script(firewall, "table", "uplink")


def test_merged_ranges_cover_the_originals() -> None:
    merged = [IPv4Network(each) for each in without_overlaps(IPV4_REGISTRY)]
    assert all(any(IPv4Network(each).subnet_of(network) for network in merged) for each in IPV4_REGISTRY)
    assert not any(one.overlaps(other) for one in merged for other in merged if one is not other)
