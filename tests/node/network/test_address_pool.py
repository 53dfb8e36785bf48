from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.node.network.address_pool import AddressPool, NoAddressAvailable

SMALL = IPv4Network("10.0.0.0/28")


def test_first_and_last_addresses_are_reserved() -> None:
    addresses = AddressPool(SMALL, reserved=8)
    assert [str(addresses.allocate()) for _ in range(7)] == [f"10.0.0.{n}" for n in range(8, 15)]
    with pytest.raises(NoAddressAvailable, match=r"all addresses of 10\.0\.0\.0/28 are in use"):
        addresses.allocate()


def test_released_address_is_reused_last() -> None:
    addresses = AddressPool(SMALL, reserved=8)
    taken = [addresses.allocate() for _ in range(3)]
    addresses.release(taken[1])
    addresses.release(taken[0])
    fresh = [addresses.allocate() for _ in range(4)]
    assert not set(fresh) & set(taken)
    assert [addresses.allocate(), addresses.allocate()] == [taken[1], taken[0]]


def test_reserved_address_is_not_allocated() -> None:
    addresses = AddressPool(SMALL, reserved=8)
    addresses.reserve(IPv4Address("10.0.0.9"))
    assert [str(addresses.allocate()) for _ in range(2)] == ["10.0.0.8", "10.0.0.10"]


def test_address_of_another_network_cannot_be_reserved() -> None:
    with pytest.raises(ValueError, match=r"10\.1\.0\.1 is not in"):
        AddressPool(SMALL).reserve(IPv4Address("10.1.0.1"))


def test_release_is_idempotent() -> None:
    addresses = AddressPool(SMALL, reserved=13)
    address = addresses.allocate()
    addresses.release(address)
    addresses.release(address)
    assert [addresses.allocate(), addresses.allocate()] == [IPv4Address("10.0.0.14"), address]


@given(st.lists(st.integers(0, 40), max_size=80))
def test_allocated_addresses_are_unique(steps: list[int]) -> None:
    addresses = AddressPool(IPv4Network("10.0.0.0/27"), reserved=3)
    taken: list[IPv4Address] = []
    for step in steps:
        if step < 20 and taken:
            addresses.release(taken.pop(step % len(taken)))
        elif step == 40:
            free = IPv4Address("10.0.0.20")
            if free not in taken:
                addresses.reserve(free)
                taken.append(free)
        else:
            try:
                address = addresses.allocate()
            except NoAddressAvailable:
                assert len(taken) == 28
            else:
                assert address not in taken
                taken.append(address)
