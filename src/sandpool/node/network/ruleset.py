"""nft scripts for a firewall: the full table, or an update.

A packet of a pod is looked up by its source in the map ``egress`` and, if it is for another pod, by its destination in
the map ``ingress``. A chain accepts what it allows and otherwise returns to its caller, which rejects. An address that
is in no map and a chain without rules therefore let nothing through.

Traffic from the node itself, which arrives over the uplink, reaches every pod: probes and the router come from there.
The node's side of the uplink decides which users of the node may use it (``node_script``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import IPv4Network
from itertools import groupby

from sandpool.node.network.policy import OPEN, Firewall, IpBlock, Port, Rule
from sandpool.node.network.special_ranges import without_overlaps


def full_script(firewall: Firewall, table: str, uplink: str) -> str:
    """Return a script that replaces the table atomically."""
    lines = [f"table inet {table}", f"delete table inet {table}", f"table inet {table} {{", *_frame(uplink)]
    for name, addresses in firewall.sets.items():
        lines += [f"set {name} {{", "type ipv4_addr", *_elements(sorted(addresses)), "}"]
    for name, rules in firewall.chains.items():
        lines += [f"chain {name} {{", *_rules(name, rules), "}"]
    for direction, chain_of in (("ingress", firewall.ingress), ("egress", firewall.egress)):
        entries = [f"{address} : {_jump(direction, chain)}" for address, chain in sorted(chain_of.items())]
        lines += [f"map {direction} {{", "type ipv4_addr : verdict", *_elements(entries), "}"]
    lines.append("}")
    return "\n".join(lines) + "\n"


def update_script(old: Firewall, new: Firewall, table: str, uplink: str) -> str:
    """Return a script that turns the old firewall into the new one; empty if they are equal. If chains or sets are no
    longer used, which is rare, the script replaces the whole table."""
    if old.chains.keys() - new.chains.keys() or old.sets.keys() - new.sets.keys():
        return full_script(new, table, uplink)
    lines: list[str] = []
    for name, addresses in new.sets.items():
        before = old.sets.get(name)
        if before is None:
            lines.append(f"add set inet {table} {name} {{ type ipv4_addr; }}")
        lines += _element("delete", table, name, sorted((before or frozenset()) - addresses))
        lines += _element("add", table, name, sorted(addresses - (before or frozenset())))
    for name, rules in new.chains.items():
        if name not in old.chains:
            lines.append(f"add chain inet {table} {name}")
            lines += [f"add rule inet {table} {name} {rule}" for rule in _rules(name, rules)]
    for direction, before_of, after_of in (
        ("ingress", old.ingress, new.ingress),
        ("egress", old.egress, new.egress),
    ):
        lines += _moves(table, direction, before_of, after_of)
    return "".join(f"{line}\n" for line in lines)


def node_script(table: str, uplink: str, pods: IPv4Network, uid: int) -> str:
    """Return the script for the node's own namespace: pods reach the network beyond the node and not the node itself,
    and of the node's processes only those of ``uid``, the agent's user, reach pods."""
    return f"""table inet {table}
delete table inet {table}
table inet {table} {{
  chain input {{
    type filter hook input priority filter; policy accept;
    iifname "{uplink}" ct state established,related accept
    iifname "{uplink}" reject with icmpx admin-prohibited
  }}
  chain output {{
    type filter hook output priority filter; policy accept;
    oifname "{uplink}" ct state established,related accept
    oifname "{uplink}" meta skuid != {uid} reject with icmpx admin-prohibited
  }}
  chain forward {{
    type filter hook forward priority filter; policy accept;
    oifname "{uplink}" ct state established,related accept
    oifname "{uplink}" reject with icmpx admin-prohibited
  }}
  chain postrouting {{
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr {pods} oifname != "{uplink}" masquerade
  }}
}}
"""


def _frame(uplink: str) -> list[str]:
    """The rules that do not depend on pods. Packets to link-local addresses, where clouds have their metadata services,
    are never forwarded, whatever a policy allows."""
    return f"""chain input {{
type filter hook input priority filter; policy drop;
ct state established,related accept
iifname {{ "lo", "{uplink}" }} accept
udp dport 53 accept
tcp dport 53 accept
goto refuse
}}
chain forward {{
type filter hook forward priority filter; policy drop;
ct state established,related accept
iifname "{uplink}" accept
ip daddr 169.254.0.0/16 goto refuse
ip saddr vmap @egress
goto refuse
}}
chain admitted {{
oifname "{uplink}" accept
ip daddr vmap @ingress
goto refuse
}}
chain open_egress {{
goto admitted
}}
chain open_ingress {{
accept
}}
chain refuse {{
reject with icmpx admin-prohibited
}}""".splitlines()


def _rules(chain: str, rules: Iterable[Rule]) -> list[str]:
    is_in = chain.startswith("in_")
    return [
        " ".join((*_peer("saddr" if is_in else "daddr", rule), *ports, "accept" if is_in else "goto admitted"))
        for rule in rules
        if rule.is_ipv4
        for ports in _ports(rule.ports)
    ]


def _peer(end: str, rule: Rule) -> list[str]:
    peer = rule.peer
    if peer is None:
        return []
    if isinstance(peer, IpBlock):
        exceptions = [f"ip {end} != {{ {', '.join(without_overlaps(peer.exceptions))} }}"] if peer.exceptions else []
        return [f"ip {end} {peer.cidr}", *exceptions]
    return [f"ip {end} @{peer}"]


def _ports(ports: tuple[Port, ...]) -> list[tuple[str, ...]]:
    """The match of each protocol; one empty match if the rule is for all ports."""
    found: list[tuple[str, ...]] = []
    for protocol, group in groupby(sorted(set(ports)), key=lambda port: port.protocol):
        wanted = list(group)
        if any(port.first == 0 for port in wanted):
            found.append((f"meta l4proto {protocol}",))
        else:
            found.append((f"{protocol} dport {{ {', '.join(_merged(wanted))} }}",))
    return found or [()]


def _merged(ports: Iterable[Port]) -> list[str]:
    """Merge overlapping ranges of ports: an nft set refuses overlapping intervals."""
    ranges: list[list[int]] = []
    for _, first, last in sorted(ports):
        if ranges and first <= ranges[-1][1] + 1:
            ranges[-1][1] = max(ranges[-1][1], last)
        else:
            ranges.append([first, last])
    return [str(first) if first == last else f"{first}-{last}" for first, last in ranges]


def _moves(table: str, direction: str, before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    def entries(chain_of: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
        changed = sorted(item for item in chain_of.items() if other.get(item[0]) != item[1])
        return [f"{address} : {_jump(direction, chain)}" for address, chain in changed]

    return [
        *_element("delete", table, direction, entries(before, after)),
        *_element("add", table, direction, entries(after, before)),
    ]


def _jump(direction: str, chain: str) -> str:
    return f"jump open_{direction}" if chain == OPEN else f"jump {chain}"


def _element(verb: str, table: str, name: str, entries: list[str]) -> list[str]:
    return [f"{verb} element inet {table} {name} {{ {', '.join(entries)} }}"] if entries else []


def _elements(entries: list[str]) -> list[str]:
    return [f"elements = {{ {', '.join(entries)} }}"] if entries else []
