"""Figures and the tables they are printed in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile by nearest rank."""
    return ranked(sorted(values), percent)


def ranked(ordered: Sequence[T], percent: float) -> T:
    """Return the percentile of a sorted sequence."""
    return ordered[max(math.ceil(len(ordered) * percent / 100) - 1, 0)]


@dataclass(slots=True)
class Figure:
    """One measured figure beside its target."""

    name: str
    value: float
    unit: str
    target: str = ""
    reached: bool | None = None  # None: there is no target, or it could not be judged
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        if isinstance(self.value, int):  # counted, not measured
            return f"{self.value:,} {self.unit}".strip()
        digits = 0 if abs(self.value) >= 100 else 1 if abs(self.value) >= 10 else 2
        return f"{self.value:,.{digits}f} {self.unit}".strip()

    @property
    def verdict(self) -> str:
        return "" if self.reached is None else "reached" if self.reached else "MISSED"


def table(figures: Sequence[Figure]) -> str:
    """Render a Markdown table, aligned for reading as text."""
    rows = [("", "measured", "target", "", "details")]
    rows += [
        (f.name, f.shown, f.target, f.verdict, ", ".join(f"{key} {value}" for key, value in f.details.items()))
        for f in figures
    ]
    return grid(rows)


def grid(rows: Sequence[Sequence[str]]) -> str:
    """Render a Markdown table with aligned columns; the first row is the head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    padded.insert(1, ["-" * width for width in widths])
    return "\n".join("| " + " | ".join(row) + " |" for row in padded)
