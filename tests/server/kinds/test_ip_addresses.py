"""Addresses and ranges in general. Recorded cases hold the words to kube-apiserver."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.server.kinds.ip_addresses import (
    read_address,
    read_range,
    validate_address,
    validate_canonical_address,
    validate_range,
)


def is_mapped(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    return isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None


@given(st.ip_addresses().filter(lambda address: not is_mapped(address)))
def test_every_address_is_accepted(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    assert read_address(str(address)) == address
    assert list(validate_address(str(address), "a")) == []
    assert list(validate_canonical_address(str(address), "a")) == []


@given(st.ip_addresses().filter(lambda address: not is_mapped(address)), st.integers(0, 32))
def test_every_range_is_accepted_from_its_first_address(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address, length: int
) -> None:
    network = ipaddress.ip_network((address, length), strict=False)
    assert read_range(str(network)) == network
    assert list(validate_range(str(network), "a")) == []
    inside = f"{address}/{length}"
    assert read_range(inside) == network
    assert bool(list(validate_range(inside, "a"))) == (address != network.network_address)


@given(st.text(alphabet="0123456789abf.:/%", max_size=20))
def test_any_text_is_an_address_or_reported(text: str) -> None:
    if read_address(text) is None:
        assert list(validate_address(text, "a"))
    if read_range(text) is None:
        assert list(validate_range(text, "a"))


@pytest.mark.parametrize("text", ["0" * 5000 + "1.2.3.4", "1.2.3." + "9" * 5000, "10.0.0.0/" + "9" * 5000, "١.2.3.4"])
def test_numbers_of_any_length_and_script_are_handled(text: str) -> None:
    assert list(validate_address(text, "a")) and list(validate_range(text, "a"))


def test_previously_accepted_values_stay_accepted() -> None:
    assert list(validate_address("010.0.0.1", "a", ["010.0.0.1"])) == []
    assert list(validate_range("10.0.0.1/8", "a", {"10.0.0.1/8"})) == []
