from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import TypeVar

import pytest

from sandpool.node.network import netlink
from sandpool.node.network.netlink import LOOPBACK, Netlink
from sandpool.node.network.netns import NetworkNamespace

pytestmark = pytest.mark.isolation

T = TypeVar("T")
Within = Callable[[Callable[[Netlink], T]], T]

_ADDRESS = IPv4Address("10.1.2.3")
_OTHER = IPv4Address("10.1.2.4")


@pytest.fixture
def within(tmp_path: Path) -> Iterator[Within[object]]:
    """Runs something in a network namespace of its own."""
    namespace, _ = NetworkNamespace.make(tmp_path / "net", lambda: None)

    def call(work: Callable[[Netlink], T]) -> T:
        def inside() -> T:
            with Netlink() as link:
                return work(link)

        return namespace.call(inside)

    yield call
    namespace.remove()


def test_requests_sent_together_are_executed_in_order(within: Within[str]) -> None:
    def work(link: Netlink) -> str:
        with Path("/proc/thread-self/ns/net").open("rb") as mine:
            link.execute(
                netlink.up(LOOPBACK),
                netlink.veth("a", 70, "b", 71, mine.fileno()),
                netlink.up(71),
                netlink.address(70, _ADDRESS),
                netlink.route_by_link(_OTHER, 70, on_link=True),
                netlink.route_by_gateway(IPv4Network("10.9.0.0/16"), _OTHER),
                netlink.route_by_gateway(None, _OTHER),
                netlink.unreachable(IPv4Network("10.8.0.0/16")),
            )
        assert (socket.if_nametoindex("a"), socket.if_nametoindex("b")) == (70, 71)
        return Path("/proc/thread-self/net/route").read_text()

    routes = {tuple(line.split()[index] for index in (0, 1, 2, 7)) for line in str(within(work)).splitlines()[1:]}
    assert routes == {
        ("a", "0402010A", "00000000", "FFFFFFFF"),
        ("a", "0000090A", "0402010A", "0000FFFF"),
        ("a", "00000000", "0402010A", "00000000"),
        ("*", "0000080A", "00000000", "0000FFFF"),
    }


def test_first_failure_is_raised_and_all_replies_are_read(within: Within[None]) -> None:
    def work(link: Netlink) -> None:
        with pytest.raises(OSError) as failed:
            link.execute(netlink.up(LOOPBACK), netlink.up(99), netlink.address(99, _ADDRESS), netlink.up(LOOPBACK))
        assert failed.value.errno == errno.ENODEV
        assert netlink.is_missing(failed.value)
        link.execute(netlink.up(LOOPBACK))  # no answer of before is taken for this one's

    within(work)


def test_existing_address_is_not_added_again(within: Within[None]) -> None:
    def work(link: Netlink) -> None:
        link.execute(netlink.address(LOOPBACK, _ADDRESS))
        with pytest.raises(FileExistsError):
            link.execute(netlink.address(LOOPBACK, _ADDRESS))

    within(work)


def test_link_is_removed_with_its_other_end(within: Within[None]) -> None:
    def work(link: Netlink) -> None:
        with Path("/proc/thread-self/ns/net").open("rb") as mine:
            link.execute(netlink.veth("a", 0, "b", 0, mine.fileno()), netlink.remove("b"))
        assert [name for _, name in socket.if_nameindex() if name in "ab"] == []
        with pytest.raises(OSError) as failed:
            link.execute(netlink.remove("a"))
        assert netlink.is_missing(failed.value)

    within(work)
