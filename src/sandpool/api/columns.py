"""Printer columns of ``kubectl get``, as a CustomResourceDefinition declares them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Column:
    """One column. Columns with a ``priority`` above 0 appear in wide output only. ``type`` is integer, number, string,
    boolean or date; ``json_path`` selects the value of the cell."""

    name: str
    type: str
    json_path: str
    description: str = ""
    format: str = ""
    priority: int = 0


AGE: Final = Column("Age", "date", ".metadata.creationTimestamp")


def from_printer_columns(entries: Iterable[Mapping[str, Any]]) -> tuple[Column, ...]:
    """The ``additionalPrinterColumns`` of a CustomResourceDefinition's version."""
    return tuple(
        Column(
            entry["name"],
            entry["type"],
            entry["jsonPath"],
            entry.get("description", ""),
            entry.get("format", ""),
            entry.get("priority", 0),
        )
        for entry in entries
    )


def to_printer_columns(columns: Iterable[Column]) -> list[dict[str, Any]]:
    entries = []
    for column in columns:
        entry: dict[str, Any] = {"name": column.name, "type": column.type, "jsonPath": column.json_path}
        for key in ("description", "format", "priority"):
            if value := getattr(column, key):
                entry[key] = value
        entries.append(entry)
    return entries
