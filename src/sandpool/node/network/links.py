"""Network links between pods and the node.

Every pod has one veth pair into a network namespace in the middle, the router namespace. There are no other links:
packets between pods are routed there, through the firewall. The usual design is a bridge, which was rejected: pods on a
bridge see each other's broadcasts and may claim each other's addresses unless rules forbid it, and a bridge has at most
about a thousand ports. With veth pairs there is nothing to forbid. The gateway's address is on the loopback interface
of the router namespace, which answers for it on every link, and the kernel drops a packet whose source is not the
address of its link (rp_filter).

One more veth pair, the uplink, connects the node. Nothing else of the node's network is touched.

A pod's link goes with the pod's namespace, and all links go with the router namespace.
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

#: The name of the link in a pod's namespace.
POD_LINK: Final = "eth0"
UPLINK: Final = "uplink"

# Interface indexes are chosen here, so that none has to be looked up: one for the pod's end, and one per address for
# the router's end. The kernel's own numbering begins at 1 and does not get this far.
_POD_LINK_INDEX: Final = 1 << 19
_ROUTER_LINK_INDEX: Final = 1 << 20
_FORWARDING: Final = Path("/proc/sys/net/ipv4/ip_forward")
_ROUTER_NETNS: Final[Mapping[str, str]] = {
    "ipv4/ip_forward": "1",
    # A packet must arrive on the link of its source address.
    "ipv4/conf/all/rp_filter": "1",
    "ipv4/conf/default/rp_filter": "1",
    # There is never a shorter way than through the router.
    "ipv4/conf/all/send_redirects": "0",
    "ipv4/conf/default/send_redirects": "0",
    "ipv6/conf/all/disable_ipv6": "1",
    "ipv6/conf/default/disable_ipv6": "1",
}
_POD: Final[Mapping[str, str]] = {
    "ipv6/conf/all/disable_ipv6": "1",
    # Any user may bind ports below 1024: a pod has one user.
    "ipv4/ip_unprivileged_port_start": "0",
    "ipv4/ping_group_range": "0 2147483647",
}


@dataclass(frozen=True, slots=True)
class AddressPlan:
    """The addresses of a node: ``gateway`` is the router namespace as pods see it, ``inner`` and ``node`` are the ends
    of the uplink."""

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


def make_router_netns(path: Path, plan: AddressPlan, host: Path | None) -> NetworkNamespace:
    """Make the router namespace with its uplink into the namespace ``host``, or into that of the calling thread."""
    with open_namespace(host) as handle:

        def prepare() -> None:
            _write(_ROUTER_NETNS)
            with Netlink() as link:
                link.execute(
                    netlink.up(LOOPBACK),
                    netlink.address(LOOPBACK, plan.gateway),
                    # The kernel chooses the index of the node's end: the node has other links.
                    netlink.veth(UPLINK, 0, plan.uplink, 0, handle),
                )
                index = socket.if_nametoindex(UPLINK)
                link.execute(
                    *_end(index, plan.inner, plan.node),
                    netlink.route_by_gateway(None, plan.node),
                    # A packet to a pod that is gone is answered "unreachable" and not routed back to the node.
                    netlink.unreachable(plan.pods),
                )

        return NetworkNamespace.make(path, prepare)[0]


def connect_node(plan: AddressPlan) -> None:
    """Configure the node's end of the uplink. Call it in the node's namespace."""
    index = socket.if_nametoindex(plan.uplink)
    with Netlink() as link:
        link.execute(
            netlink.up(index),
            *_end(index, plan.node, plan.inner),
            netlink.route_by_gateway(plan.pods, plan.inner),
        )
    _write({f"ipv6/conf/{plan.uplink}/disable_ipv6": "1"})


def set_forwarding(value: str) -> str:
    """Set IP forwarding of the node, by which pods reach the internet, and return the former value."""
    before = _FORWARDING.read_text().strip()
    if before != value:
        _FORWARDING.write_text(value)
    return before


def disconnect_node(plan: AddressPlan) -> None:
    with Netlink() as link:
        _remove(link, plan.uplink)


def set_up_loopback() -> None:
    """Configure a pod's namespace with a loopback interface only. Call it in that namespace."""
    _write(_POD)
    with Netlink() as link:
        link.execute(netlink.up(LOOPBACK))


def make_pod_netns(path: Path, plan: AddressPlan, router_netns: Path, address: IPv4Address) -> NetworkNamespace:
    router_link = _router_link_index(address, plan)
    with open_namespace(router_netns) as handle:

        def prepare() -> None:
            _write(_POD)
            with Netlink() as link:
                link.execute(
                    netlink.up(LOOPBACK),
                    netlink.veth(POD_LINK, _POD_LINK_INDEX, veth_name(address), router_link, handle),
                    *_end(_POD_LINK_INDEX, address, plan.gateway),
                    netlink.route_by_gateway(None, plan.gateway),
                )

        return NetworkNamespace.make(path, prepare)[0]


class RouterLinks:
    """The router's ends of the pods' links. Made by a thread in the router namespace, used by any thread."""

    def __init__(self, plan: AddressPlan) -> None:
        self.plan = plan
        self._link = Netlink()
        self._lock = Lock()

    def connect(self, address: IPv4Address) -> None:
        index = _router_link_index(address, self.plan)
        with self._lock:
            self._link.execute(netlink.up(index), netlink.route_by_link(address, index))

    def disconnect(self, address: IPv4Address) -> None:
        """Remove both ends at once. The kernel would remove them some time after the pod's namespace is gone."""
        with self._lock:
            _remove(self._link, veth_name(address))

    def close(self) -> None:
        self._link.close()


def veth_name(address: IPv4Address) -> str:
    """The name of a pod's link in the router namespace, by the pod's address."""
    return f"pod-{int(address):08x}"


def _router_link_index(address: IPv4Address, plan: AddressPlan) -> int:
    return _ROUTER_LINK_INDEX + int(address) - int(plan.pods.network_address)


def _end(index: int, address: IPv4Address, other: IPv4Address) -> tuple[bytes, bytes]:
    """Requests for one end of a link that is up: its address, and a route to the address at the other end."""
    return netlink.address(index, address), netlink.route_by_link(other, index, on_link=True)


def _remove(link: Netlink, name: str) -> None:
    try:
        link.execute(netlink.remove(name))
    except OSError as error:
        if not netlink.is_missing(error):
            raise


def _write(options: Mapping[str, str]) -> None:
    """Write sysctls of the network namespace of this thread. A kernel without IPv6 has none for it."""
    for name, value in options.items():
        setting = Path("/proc/sys/net", name)
        if setting.exists() or not name.startswith("ipv6/"):
            setting.write_text(value)
