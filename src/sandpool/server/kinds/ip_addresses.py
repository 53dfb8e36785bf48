"""Validation of IP addresses and CIDR ranges in objects.

Programs disagree on what an address with leading zeros means, and on IPv4-mapped IPv6 addresses. Both are parsed the
way Kubernetes parses them, because stored objects may contain them, and both are refused in new values.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import Final

from sandpool.api.causes import Cause, invalid, quoted

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_is_dotted = re.compile(r"[0-9]+(\.[0-9]+){3}").fullmatch
_leading_zero = re.compile(r"(?:^|\.)0[0-9]").search
_LONGEST: Final = 64  # ordinary addresses are shorter, and results are cached by their text
_is_length = re.compile("[0-9]+").fullmatch
_NOT_REACHABLE: Final = (
    ("is_loopback", "may not be in the loopback range (127.0.0.0/8, ::1/128)"),
    ("is_link_local", "may not be in the link-local range (169.254.0.0/16, fe80::/10)"),
)
_LINK_LOCAL_MULTICAST: Final = (ipaddress.ip_network("224.0.0.0/24"), ipaddress.ip_network("ff02::/16"))


def _without_zeros(number: str) -> str:
    return number.lstrip("0") or "0"


def read_address(text: str) -> Address | None:
    """Parse an address, leniently; None if the text is not an address."""
    return _remembered_address(text) if len(text) <= _LONGEST else _read_address(text)


def _read_address(text: str) -> Address | None:
    if _is_dotted(text) and _leading_zero(text):
        text = ".".join(map(_without_zeros, text.split(".")))
    try:
        return None if "%" in text else ipaddress.ip_address(text)
    except ValueError:
        return None


# A pod writes its addresses with every status.
_remembered_address = lru_cache(1024)(_read_address)


def read_range(text: str) -> Network | None:
    address_text, _, length = text.partition("/")
    address = read_address(address_text)
    if address is None or not _is_length(length) or len(_without_zeros(length)) > 3:
        return None
    bits = int(length)
    return ipaddress.ip_network((address, bits), strict=False) if bits <= address.max_prefixlen else None


def _has_leading_zeros(text: str) -> bool:
    return _leading_zero(text) is not None and _is_dotted(text) is not None


def _is_mapped(address: Address) -> bool:
    return isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None


def validate_address(text: str, path: str, known: Collection[str] = ()) -> Iterator[Cause]:
    """Validate an address, except for those in ``known``: older rules may have accepted them."""
    if text in known:
        return
    address = read_address(text)
    if address is None:
        yield invalid(path, text, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")
    elif _has_leading_zeros(text):
        yield invalid(path, text, "must not have leading 0s")
    elif _is_mapped(address):
        yield invalid(path, text, "must not be an IPv4-mapped IPv6 address")


def validate_canonical_address(text: str, path: str) -> Iterator[Cause]:
    """Validate an address of a field that has always required the canonical form."""
    wrong = list(validate_address(text, path))
    yield from wrong
    if not wrong and text != (spelled := str(read_address(text))):
        yield invalid(path, text, f"must be in canonical form ({quoted(spelled)})")


def validate_range(text: str, path: str, known: Collection[str] = ()) -> Iterator[Cause]:
    if text in known:
        return
    network = read_range(text)
    address, _, length = text.partition("/")
    if network is None:
        yield invalid(path, text, "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)")
    elif _has_leading_zeros(address) or length != _without_zeros(length):
        yield invalid(path, text, "must not have leading 0s in IP or prefix length")
    elif _is_mapped(network.network_address):
        yield invalid(path, text, "must not have an IPv4-mapped IPv6 address")
    elif read_address(address) != network.network_address:
        yield invalid(path, text, "must not have bits set beyond the prefix length")


def validate_endpoint_address(text: str, path: str) -> Iterator[Cause]:
    """Validate that other hosts can reach an address."""
    address = read_address(text)
    if address is None:
        yield invalid(path, text, "must be a valid IP address")
        return
    if address.is_unspecified:
        yield invalid(path, text, f"may not be unspecified ({text})")
    for attribute, why in _NOT_REACHABLE:
        if getattr(address, attribute):
            yield invalid(path, text, why)
    if any(address in network for network in _LINK_LOCAL_MULTICAST):
        yield invalid(path, text, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)")
