"""Resource quantities ("500m", "1Gi"): parsing, comparison and canonical form.

A quantity is an integer number of billionths, the smallest unit of Kubernetes; smaller fractions are rounded away from
zero. The canonical form keeps the suffix family (powers of 1024, powers of 1000, exponents) but not the spelling:
"1024Mi" is stored as "1Gi" and "0.5" as "500m".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Final, Literal

Family = Literal["decimal", "binary", "exponent"]

_SYNTAX: Final = re.compile(r"([+-]?)(\d*)(?:\.(\d*))?(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?\d+))?", re.ASCII)
_DECIMAL: Final = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
_BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_EXPONENTS: Final = tuple("" if power == 0 else f"e{power}" for power in range(-9, 19, 3))
_UNIT: Final = 10**9
_LARGEST: Final = (2**63 - 1) * _UNIT

_ROUGHLY: Final = re.compile(r"[+-]?[0-9.]+[eEinumkKMGTP]*[-+]?[0-9]*")
NOT_A_QUANTITY: Final = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
UNKNOWN_SUFFIX: Final = "unable to parse quantity's suffix"


@dataclass(frozen=True, slots=True, order=True)
class Quantity:
    """An amount. Equality and order use the value only; the family selects the suffix."""

    billionths: int
    family: Family = field(default="decimal", compare=False)

    def rounded_up(self, step: int) -> Quantity:
        """Round away from zero to a multiple of ``step`` billionths."""
        whole = -(-abs(self.billionths) // step) * step
        return Quantity(whole if self.billionths >= 0 else -whole, self.family)

    def __str__(self) -> str:
        if self.family == "binary" and abs(self.billionths) >= 1024 * _UNIT:
            return _spelled(self.rounded_up(_UNIT).billionths // _UNIT, 1024, _BINARY)
        if self.family == "exponent":
            return _spelled(self.billionths, 1000, _EXPONENTS)
        return _spelled(self.billionths, 1000, _DECIMAL)


def _spelled(number: int, base: int, suffixes: tuple[str, ...]) -> str:
    """Format the number with the largest suffix that keeps it an integer."""
    if number == 0:
        return "0"
    for suffix in suffixes[:-1]:
        if number % base:
            return f"{number}{suffix}"
        number //= base
    return f"{number}{suffixes[-1]}"


@lru_cache(maxsize=4096, typed=True)
def parse(text: str | int | float) -> Quantity:
    """Parse a quantity or a plain number. Raises ValueError with kube-apiserver's message."""
    match = _SYNTAX.fullmatch(str(text))
    if match is None or isinstance(text, bool):
        raise ValueError(UNKNOWN_SUFFIX if _ROUGHLY.fullmatch(str(text)) else NOT_A_QUANTITY)
    sign, whole, decimals, suffix, exponent = match.groups()
    if not whole and not decimals:
        raise ValueError(NOT_A_QUANTITY)
    if exponent and len(exponent) > 4:
        raise ValueError(UNKNOWN_SUFFIX)
    number = Fraction(int((whole or "0") + (decimals or "")), 10 ** len(decimals or ""))
    family: Family = "decimal"
    if exponent:
        family, scale = "exponent", Fraction(10) ** int(exponent)
    elif suffix in _BINARY[1:]:
        family, scale = "binary", Fraction(1024) ** _BINARY.index(suffix)
    else:
        scale = Fraction(1000) ** (_DECIMAL.index(suffix or "") - 3)
    scaled = number * scale * _UNIT
    billionths = min(-(-scaled.numerator // scaled.denominator), _LARGEST)
    return Quantity(-billionths if sign == "-" else billionths, family)


@lru_cache(maxsize=4096, typed=True)
def canonical(text: str | int | float) -> str:
    """The canonical form, in which the API stores a quantity."""
    return str(parse(text))


@lru_cache(maxsize=4096, typed=True)
def canonical_amount(text: str | int | float) -> str:
    """The canonical form of a resource amount, which has a resolution of thousandths."""
    return str(parse(text).rounded_up(10**6))
