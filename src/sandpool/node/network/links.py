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

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Final

from pyroute2 import IPRoute

from sandpool.node.network.namespaces import Namespace, open_namespace

#: What a pod calls its end.
POD_LINK: Final = "eth0"
UPLINK: Final = "uplink"

_LOOPBACK: Final = 1
_FORWARDING: Final = Path("/proc/sys/net/ipv4/ip_forward")
_SCOPE_LINK: Final = 253
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


def make_switchyard(path: Path, plan: Plan, host: Path | None) -> Namespace:
    """With its uplink into the namespace ``host``, or into that of the caller's thread."""
    with open_namespace(host) as handle:

        def prepare() -> None:
            _write(_SWITCHYARD)
            with IPRoute() as ip:
                ip.link("set", index=_LOOPBACK, state="up")
                ip.addr("add", index=_LOOPBACK, address=str(plan.gateway), prefixlen=32)
                ip.link("add", ifname=UPLINK, kind="veth", peer={"ifname": plan.uplink, "net_ns_fd": handle})
                _connect(ip, UPLINK, plan.inner, plan.node)
                ip.route("add", dst="default", gateway=str(plan.node))
                # Who asks for a pod that is gone is told so, rather than sent back to where the question came from.
                ip.route("add", dst=str(plan.pods), type="unreachable")

        return Namespace.make(path, prepare)[0]


def connect_node(plan: Plan) -> None:
    """The node's end of the uplink; to be called in the node's namespace."""
    with IPRoute() as ip:
        _connect(ip, plan.uplink, plan.node, plan.inner)
        ip.route("add", dst=str(plan.pods), gateway=str(plan.inner))
    _write({f"ipv6/conf/{plan.uplink}/disable_ipv6": "1"})


def set_forwarding(value: str) -> str:
    """Whether the node passes packets on, which is how pods reach the world; returns what it was."""
    before = _FORWARDING.read_text().strip()
    if before != value:
        _FORWARDING.write_text(value)
    return before


def disconnect_node(plan: Plan) -> None:
    with IPRoute() as ip:
        for index in ip.link_lookup(ifname=plan.uplink):
            ip.link("del", index=index)


def raise_loopback() -> None:
    """In the namespace this thread is in."""
    _write(_POD)
    with IPRoute() as ip:
        ip.link("set", index=_LOOPBACK, state="up")


def make_pod(path: Path, plan: Plan, switchyard: Path, address: IPv4Address) -> Namespace:
    with open_namespace(switchyard) as handle:

        def prepare() -> None:
            _write(_POD)
            with IPRoute() as ip:
                ip.link("set", index=_LOOPBACK, state="up")
                ip.link("add", ifname=POD_LINK, kind="veth", peer={"ifname": wire(address), "net_ns_fd": handle})
                _connect(ip, POD_LINK, address, plan.gateway)
                ip.route("add", dst="default", gateway=str(plan.gateway))

        return Namespace.make(path, prepare)[0]


class Switchboard:
    """The switchyard's ends of the wires; to be made and used by one thread inside it."""

    def __init__(self) -> None:
        self._ip = IPRoute()

    def connect(self, address: IPv4Address) -> None:
        (index,) = self._ip.link_lookup(ifname=wire(address))
        self._ip.link("set", index=index, state="up")
        self._ip.route("add", dst=f"{address}/32", oif=index)

    def disconnect(self, address: IPv4Address) -> None:
        """Both ends go at once. The kernel would get round to it too, some time after the namespace is gone."""
        for index in self._ip.link_lookup(ifname=wire(address)):
            self._ip.link("del", index=index)

    def close(self) -> None:
        self._ip.close()


def wire(address: IPv4Address) -> str:
    """The name of a pod's wire in the switchyard: an address has one."""
    return f"pod-{int(address):08x}"


def _connect(ip: IPRoute, link: str, address: IPv4Address, other: IPv4Address) -> None:
    (index,) = ip.link_lookup(ifname=link)
    ip.addr("add", index=index, address=str(address), prefixlen=32)
    ip.link("set", index=index, state="up")
    ip.route("add", dst=f"{other}/32", oif=index, scope=_SCOPE_LINK)


def _write(settings: Mapping[str, str]) -> None:
    """Settings of the network namespace this thread is in. A kernel without IPv6 has no settings for it."""
    for name, value in settings.items():
        setting = Path("/proc/sys/net", name)
        if setting.exists() or not name.startswith("ipv6/"):
            setting.write_text(value)
