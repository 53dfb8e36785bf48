"""IP addresses and ranges in objects: what is wrong with them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from sandpool.api.causes import Cause, invalid


def is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return "%" not in text


def validate_address(text: str, path: str) -> Iterator[Cause]:
    if not is_address(text):
        yield invalid(path, text, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")


def validate_range(text: str, path: str) -> Iterator[Cause]:
    address, slash, length = text.partition("/")
    known = is_address(address) and slash and length.isdecimal()
    if not known or int(length) > (128 if ":" in address else 32):
        yield invalid(path, text, "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)")
