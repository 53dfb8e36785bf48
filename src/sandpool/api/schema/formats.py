"""The string formats a schema may ask for, as far as kube-apiserver checks them; others are no constraint."""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections.abc import Callable
from typing import Final

Test = Callable[[str], bool]


def _matching(pattern: str) -> Test:
    fullmatch = re.compile(pattern, re.ASCII).fullmatch
    return lambda text: fullmatch(text) is not None


_is_day = _matching(r"\d{4}-\d{2}-\d{2}")
_is_time_of_day = _matching(r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(.\d+)?(z|[+-]\d{2}:\d{2})")


def is_date(text: str) -> bool:
    if not _is_day(text):
        return False
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return True


def is_date_time(text: str) -> bool:
    day, _, rest = text.lower().partition("t")
    return is_date(day) and _is_time_of_day(rest)


# Go's durations ("1h30m"), and the spelled-out ones ("3 days") that are understood wherever they stand in the text.
_is_go_duration = _matching(r"[+-]?(0|((\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h))+)")
_spelled_duration = re.compile(
    r"(\d+)\s*(ns|nano|us|µs|micro|ms|milli|s\b|sec|m\b|min|h\b|hr|hour|d\b|day|w\b|wk|week)", re.ASCII | re.IGNORECASE
)


def is_duration(text: str) -> bool:
    return _is_go_duration(text) or _spelled_duration.search(text) is not None


def is_ipv4(text: str) -> bool:
    # Leading zeros are read as decimal, as Kubernetes always did.
    parts = text.split(".")
    return len(parts) == 4 and all(part.isascii() and part.isdigit() and int(part) < 256 for part in parts)


def is_ipv6(text: str) -> bool:
    if ":" not in text or "%" in text:
        return False
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def is_cidr(text: str) -> bool:
    address, slash, bits = text.partition("/")
    if not slash or not (bits.isascii() and bits.isdigit()) or len(bits) > 3:
        return False
    return (is_ipv4(address) and int(bits) <= 32) or (is_ipv6(address) and int(bits) <= 128)


_has_control = re.compile(r"[\x00-\x20\x7f]").search


def is_uri(text: str) -> bool:
    """An absolute URI or an absolute path, as in an HTTP request."""
    if not text or _has_control(text) or re.search(r"%(?![0-9A-Fa-f]{2})", text.split("?", 1)[0]):
        return False
    return text.startswith("/") or re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", text) is not None


_is_email = _matching(r"(?:[^<>]*<)?[^\s@<>(),;:\\\"\[\]]+@[^\s@<>(),;:\\\"]+>?")
_is_hostname_label = re.compile(r"[^\W_]([^\W_]|-)*").fullmatch


def is_hostname(text: str) -> bool:
    labels = text.rstrip(".").split(".")
    return len(text) <= 255 and all(
        len(label) <= 63 and not label.endswith("-") and _is_hostname_label(label) for label in labels
    )


def is_isbn10(text: str) -> bool:
    digits = re.sub(r"[\s-]+", "", text)
    if not re.fullmatch(r"[0-9]{9}[0-9X]", digits):
        return False
    return sum(weight * (10 if digit == "X" else int(digit)) for weight, digit in enumerate(digits, 1)) % 11 == 0


def is_isbn13(text: str) -> bool:
    digits = re.sub(r"[\s-]+", "", text)
    if not re.fullmatch(r"[0-9]{13}", digits):
        return False
    return sum((1, 3)[index % 2] * int(digit) for index, digit in enumerate(digits)) % 10 == 0


_is_card_number = _matching(
    r"4\d{12}(?:\d{3})?|5[1-5]\d{14}|6(?:011|5\d\d)\d{12}|3[47]\d{13}|3(?:0[0-5]|[68]\d)\d{11}|(?:2131|1800|35\d{3})\d{11}"
)


def is_credit_card(text: str) -> bool:
    digits = re.sub(r"[^0-9]+", "", text)
    doubled = (sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2])
    return _is_card_number(digits) and (sum(map(int, digits[-1::-2])) + sum(doubled)) % 10 == 0


_MAC_SEPARATED: Final = "|".join(
    rf"[0-9a-f]{{2}}([{separator}][0-9a-f]{{2}}){{{count}}}" for separator in (":", "-") for count in (5, 7, 19)
)
_SHADE: Final = r"\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*"
_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_is_short_name = _matching(_LABEL)
_is_long_name = _matching(rf"{_LABEL}(\.{_LABEL})*")
_is_ssn = _matching(r"\d{3}[- ]?\d{2}[- ]?\d{4}")

# By the name without dashes: "date-time" and "datetime" are the same.
_TESTS: Final[dict[str, Test]] = {
    "bsonobjectid": _matching("[0-9a-fA-F]{24}"),
    "byte": _matching(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})"),
    "cidr": is_cidr,
    "creditcard": is_credit_card,
    "date": is_date,
    "datetime": is_date_time,
    "duration": is_duration,
    "email": _is_email,
    "hexcolor": _matching("#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})"),
    "hostname": is_hostname,
    "ipv4": is_ipv4,
    "ipv6": is_ipv6,
    "isbn": lambda text: is_isbn10(text) or is_isbn13(text),
    "isbn10": is_isbn10,
    "isbn13": is_isbn13,
    "k8slongname": lambda text: len(text) <= 253 and _is_long_name(text),
    "k8sshortname": lambda text: len(text) <= 63 and _is_short_name(text),
    "mac": _matching(rf"(?i:{_MAC_SEPARATED}|[0-9a-f]{{4}}([.][0-9a-f]{{4}}){{2,3}})"),
    "password": lambda text: True,
    "rgbcolor": _matching(rf"rgb\({_SHADE},{_SHADE},{_SHADE}\)"),
    "ssn": lambda text: len(text) == 11 and _is_ssn(text),
    "uri": is_uri,
    "uuid": _matching("(?i:[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12})"),
    "uuid3": _matching("(?i:[0-9a-f]{8}-?[0-9a-f]{4}-?3[0-9a-f]{3}-?[0-9a-f]{4}-?[0-9a-f]{12})"),
    "uuid4": _matching("(?i:[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12})"),
    "uuid5": _matching("(?i:[0-9a-f]{8}-?[0-9a-f]{4}-?5[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12})"),
}


def format_test(name: str) -> Test | None:
    """The test for a format; None if the format is not checked."""
    return _TESTS.get(name.replace("-", ""))
