from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.node.network.address_pool import Addresses, NoAddressAvailable

SMALL = IPv4Network("10.0.0.0/28")


def test_the_first_addresses_and_the_last_are_the_nodes() -> None:
    addresses = Addresses(SMALL, reserved=8)
    assert [str(addresses.take()) for _ in range(7)] == [f"10.0.0.{n}" for n in range(8, 15)]
    with pytest.raises(NoAddressAvailable, match=r"all addresses of 10\.0\.0\.0/28 are in use"):
        addresses.take()


def test_an_address_is_used_again_as_late_as_possible() -> None:
    addresses = Addresses(SMALL, reserved=8)
    taken = [addresses.take() for _ in range(3)]
    addresses.give_back(taken[1])
    addresses.give_back(taken[0])
    fresh = [addresses.take() for _ in range(4)]
    assert not set(fresh) & set(taken)
    assert [addresses.take(), addresses.take()] == [taken[1], taken[0]]


def test_an_address_that_is_kept_is_given_to_nobody() -> None:
    addresses = Addresses(SMALL, reserved=8)
    addresses.keep(IPv4Address("10.0.0.9"))
    assert [str(addresses.take()) for _ in range(2)] == ["10.0.0.8", "10.0.0.10"]


def test_an_address_of_another_network_cannot_be_kept() -> None:
    with pytest.raises(ValueError, match=r"10\.1\.0\.1 is not in"):
        Addresses(SMALL).keep(IPv4Address("10.1.0.1"))


def test_giving_back_twice_is_no_mistake() -> None:
    addresses = Addresses(SMALL, reserved=13)
    address = addresses.take()
    addresses.give_back(address)
    addresses.give_back(address)
    assert [addresses.take(), addresses.take()] == [IPv4Address("10.0.0.14"), address]


@given(st.lists(st.integers(0, 40), max_size=80))
def test_nobody_shares_an_address(steps: list[int]) -> None:
    addresses = Addresses(IPv4Network("10.0.0.0/27"), reserved=3)
    taken: list[IPv4Address] = []
    for step in steps:
        if step < 20 and taken:
            addresses.give_back(taken.pop(step % len(taken)))
        elif step == 40:
            free = IPv4Address("10.0.0.20")
            if free not in taken:
                addresses.keep(free)
                taken.append(free)
        else:
            try:
                address = addresses.take()
            except NoAddressAvailable:
                assert len(taken) == 28
            else:
                assert address not in taken
                taken.append(address)
