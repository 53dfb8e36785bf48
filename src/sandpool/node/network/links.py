"""The wires between pods and the node.

Every pod has a wire of its own to one place in the middle, a network namespace called the switchyard, and there are no
others: what one pod sends to another is routed there, past the firewall. A bridge would have been the usual thing to
build. But on a bridge pods are neighbours, who see each other's broadcasts and may claim each other's addresses, unless
all of that is forbidden again; and a bridge ends at about a thousand ports. Here there is nothing to forbid. The
address of the gateway is on the switchyard's loopback, it answers for it on every wire, and a packet whose source is
not the address its wire was given is dropped by the kernel (rp_filter).

The node itself is connected by one more wire, the uplink. Nothing else of the node's network is touched.

A pod's wire dies with the pod's namespace, and everything dies with the switchyard.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from threading import Lock
from typing import Final

from sandpool.node.network import netlink
from sandpool.node.network.netlink import LOOPBACK, Netlink
from sandpool.node.network.netns import NetworkNamespace, open_namespace

#: What a pod calls its end.
POD_LINK: Final = "eth0"
UPLINK: Final = "uplink"

# What pods' links are numbered by, so that nobody has to ask: a pod's own, and the switchyard's ends by the pod's
# address. The kernel itself begins at 1 and does not get this far.
_POD_LINK: Final = 1 << 19
_WIRES: Final = 1 << 20
_FORWARDING: Final = Path("/proc/sys/net/ipv4/ip_forward")
_SWITCHYARD: Final[Mapping[str, str]] = {
    "ipv4/ip_forward": "1",
    # A packet must come in by the wire its source is at.
    "ipv4/conf/all/rp_filter": "1",
    "ipv4/conf/default/rp_filter": "1",
    # "Your neighbour is nearer than I am" is never true here.
    "ipv4/conf/all/send_redirects": "0",
    "ipv4/conf/default/send_redirects": "0",
    "ipv6/conf/all/disable_ipv6": "1",
    "ipv6/conf/default/disable_ipv6": "1",
}
_POD: Final[Mapping[str, str]] = {
    "ipv6/conf/all/disable_ipv6": "1",
    # Ports below 1024 are for everybody: a pod is one user.
    "ipv4/ip_unprivileged_port_start": "0",
    "ipv4/ping_group_range": "0 2147483647",
}


@dataclass(frozen=True, slots=True)
class Plan:
    """The addresses of a node: ``gateway`` is what pods see of the switchyard, the other two are the uplink's ends."""

    pods: IPv4Network
    uplink: str  # the name of the node's end

    @property
    def gateway(self) -> IPv4Address:
        return self.pods.network_address + 1

    @property
    def inner(self) -> IPv4Address:
        return self.pods.network_address + 2

    @property
    def node(self) -> IPv4Address:
        return self.pods.network_address + 3


def make_router_netns(path: Path, plan: Plan, host: Path | None) -> NetworkNamespace:
    """With its uplink into the namespace ``host``, or into that of the caller's thread."""
    with open_namespace(host) as handle:

        def prepare() -> None:
            _write(_SWITCHYARD)
            with Netlink() as link:
                link.ask(
                    netlink.up(LOOPBACK),
                    netlink.address(LOOPBACK, plan.gateway),
                    # The node numbers its end itself: there are others' links.
                    netlink.veth(UPLINK, 0, plan.uplink, 0, handle),
                )
                index = socket.if_nametoindex(UPLINK)
                link.ask(
                    *_end(index, plan.inner, plan.node),
                    netlink.route_by_gateway(None, plan.node),
                    # Who asks for a pod that is gone is told so, rather than sent back to where the question came from.
                    netlink.unreachable(plan.pods),
                )

        return NetworkNamespace.make(path, prepare)[0]


def connect_node(plan: Plan) -> None:
    """The node's end of the uplink; to be called in the node's namespace."""
    index = socket.if_nametoindex(plan.uplink)
    with Netlink() as link:
        link.ask(
            netlink.up(index),
            *_end(index, plan.node, plan.inner),
            netlink.route_by_gateway(plan.pods, plan.inner),
        )
    _write({f"ipv6/conf/{plan.uplink}/disable_ipv6": "1"})


def set_forwarding(value: str) -> str:
    """Whether the node passes packets on, which is how pods reach the world; returns what it was."""
    before = _FORWARDING.read_text().strip()
    if before != value:
        _FORWARDING.write_text(value)
    return before


def disconnect_node(plan: Plan) -> None:
    with Netlink() as link:
        _remove(link, plan.uplink)


def set_up_loopback() -> None:
    """In the namespace this thread is in."""
    _write(_POD)
    with Netlink() as link:
        link.ask(netlink.up(LOOPBACK))


def make_pod(path: Path, plan: Plan, switchyard: Path, address: IPv4Address) -> NetworkNamespace:
    with open_namespace(switchyard) as handle:

        def prepare() -> None:
            _write(_POD)
            with Netlink() as link:
                link.ask(
                    netlink.up(LOOPBACK),
                    netlink.veth(POD_LINK, _POD_LINK, wire(address), _number(address, plan), handle),
                    *_end(_POD_LINK, address, plan.gateway),
                    netlink.route_by_gateway(None, plan.gateway),
                )

        return NetworkNamespace.make(path, prepare)[0]


class RouterLinks:
    """The switchyard's ends of the wires; to be made by a thread inside it, and used by any."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._link = Netlink()
        self._asking = Lock()

    def connect(self, address: IPv4Address) -> None:
        number = _number(address, self.plan)
        with self._asking:
            self._link.ask(netlink.up(number), netlink.route_by_link(address, number))

    def disconnect(self, address: IPv4Address) -> None:
        """Both ends go at once. The kernel would get round to it too, some time after the namespace is gone."""
        with self._asking:
            _remove(self._link, wire(address))

    def close(self) -> None:
        self._link.close()


def wire(address: IPv4Address) -> str:
    """The name of a pod's wire in the switchyard: an address has one."""
    return f"pod-{int(address):08x}"


def _number(address: IPv4Address, plan: Plan) -> int:
    """Of a pod's wire in the switchyard."""
    return _WIRES + int(address) - int(plan.pods.network_address)


def _end(index: int, address: IPv4Address, other: IPv4Address) -> tuple[bytes, bytes]:
    """One end of a wire, which is up: its address, and who is at the other."""
    return netlink.address(index, address), netlink.route_by_link(other, index, on_link=True)


def _remove(link: Netlink, name: str) -> None:
    try:
        link.ask(netlink.remove(name))
    except OSError as error:
        if not netlink.is_missing(error):
            raise


def _write(settings: Mapping[str, str]) -> None:
    """Settings of the network namespace this thread is in. A kernel without IPv6 has no settings for it."""
    for name, value in settings.items():
        setting = Path("/proc/sys/net", name)
        if setting.exists() or not name.startswith("ipv6/"):
            setting.write_text(value)
