"""Address ranges that are not the public internet.

The default NetworkPolicy of a template allows egress to 0.0.0.0/0 and ::/0 except private and link-local ranges. That
object is part of the wire contract (clients compare it), so it stays as the reference has it. But its exceptions are
too few: 100.64.0.0/10 is where providers and overlay networks put machines, 127.0.0.0/8 and 0.0.0.0/8 are the node
itself, and 64:ff9b::/96 and 2002::/16 reach private IPv4 addresses in disguise. The node therefore reads a block with
these exceptions as "the public internet" and also excepts every range of IANA's special-purpose registries and
multicast.

The rule depends on the block alone, not on the policy that has it, and only ever allows less. A block without these
exceptions keeps the meaning that Kubernetes gives it. A template that needs one of the ranges names it in a rule of its
own: rules are additive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_network
from typing import Final

# By "everything" of an address family: the exceptions by which a block is recognised as the public internet.
_INTERNET: Final[Mapping[str, frozenset[str]]] = {
    "0.0.0.0/0": frozenset({"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"}),
    "::/0": frozenset({"fc00::/7", "fe80::/10"}),
}

#: IANA IPv4 and IPv6 Special-Purpose Address Registries and multicast. A range inside another one is left out.
SPECIAL_PURPOSE: Final[Mapping[str, tuple[str, ...]]] = {
    "0.0.0.0/0": (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private use
        "100.64.0.0/10",  # shared address space (carrier-grade NAT)
        "127.0.0.0/8",  # loopback
        "169.254.0.0/16",  # link local, with the metadata services of clouds
        "172.16.0.0/12",  # private use
        "192.0.0.0/24",  # IETF protocol assignments
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # automatic multicast tunneling
        "192.88.99.0/24",  # 6to4 relay anycast, deprecated
        "192.168.0.0/16",  # private use
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarking
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, with limited broadcast
    ),
    "::/0": (
        "::/128",  # unspecified
        "::1/128",  # loopback
        "::ffff:0:0/96",  # IPv4-mapped
        "64:ff9b::/96",  # IPv4-IPv6 translation
        "64:ff9b:1::/48",  # local-use translation
        "100::/64",  # discard only
        "100:0:0:1::/64",  # dummy prefix
        "2001::/23",  # IETF protocol assignments, with Teredo
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
        "5f00::/16",  # segment routing
        "fc00::/7",  # unique local
        "fe80::/10",  # link local
        "ff00::/8",  # multicast
    ),
}


def egress_exceptions(cidr: str, excepted: Iterable[str]) -> tuple[str, ...]:
    """Return the ranges that an egress ``ipBlock`` does not cover: its own exceptions, and the special-purpose ranges
    if the block stands for the public internet."""
    own = tuple(excepted)
    markers = _INTERNET.get(cidr)
    if markers is None or not markers.issubset(own):
        return own
    return without_overlaps((*own, *SPECIAL_PURPOSE[cidr]))


def without_overlaps(ranges: Iterable[str]) -> tuple[str, ...]:
    """Merge ranges of one family that overlap or touch. An nft set refuses overlapping intervals."""
    networks = [ip_network(each, strict=False) for each in ranges]
    v4 = [each for each in networks if isinstance(each, IPv4Network)]
    v6 = [each for each in networks if isinstance(each, IPv6Network)]
    return tuple(str(each) for each in (*collapse_addresses(v4), *collapse_addresses(v6)))
