"""Columns, printers, and the cell texts that several kinds share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sandpool.api.resource import Object
from sandpool.server.tables.age import age

NONE = "<none>"
UNSET = "<unset>"


@dataclass(frozen=True, slots=True)
class TableColumn:
    name: str
    type: str = "string"
    format: str = ""
    priority: int = 0  # above 0: shown with ``-o wide`` only
    description: str = ""


@dataclass(frozen=True, slots=True)
class Printer:
    """Makes rows from objects of one kind. A row has a cell for every column; clients hide the wide ones."""

    columns: tuple[TableColumn, ...]
    cells: Callable[[Object, datetime], list[Any]]
    # The conditions of a row; clients may grey out completed ones.
    conditions: Callable[[Object], list[Object]] = lambda obj: []


NAME = TableColumn("Name", format="name")
AGE = TableColumn("Age")


def integer(name: str) -> TableColumn:
    return TableColumn(name, "integer")


def wide(name: str) -> TableColumn:
    return TableColumn(name, priority=1)


def value_at(obj: Any, *path: str) -> Any:
    """The value at a path of fields, or None if any of them is missing."""
    for name in path:
        obj = obj.get(name) if isinstance(obj, dict) else None
    return obj


def name_of(obj: Object) -> str:
    return value_at(obj, "metadata", "name") or ""


def age_of(obj: Object, now: datetime) -> str:
    return age(value_at(obj, "metadata", "creationTimestamp"), now)


def labels_text(labels: Mapping[str, str] | None) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted((labels or {}).items())) or NONE


def selector_text(selector: Object | None) -> str:
    """A LabelSelector in the text form of label selectors, ordered by key; empty if it selects everything."""
    selector = selector or {}
    terms = [(key, f"{key}={value}") for key, value in (selector.get("matchLabels") or {}).items()]
    for requirement in selector.get("matchExpressions") or ():
        key, values = requirement["key"], ",".join(sorted(requirement.get("values") or ()))
        text = {
            "In": f"{key} in ({values})",
            "NotIn": f"{key} notin ({values})",
            "Exists": key,
            "DoesNotExist": f"!{key}",
        }.get(requirement["operator"], key)
        terms.append((key, text))
    return ",".join(text for _, text in sorted(terms, key=lambda term: term[0]))


def containers_texts(containers: Iterable[Object] | None) -> list[str]:
    """The cells Containers and Images."""
    listed = list(containers or ())
    return [",".join(container.get(field) or "" for container in listed) for field in ("name", "image")]


def condition(obj: Object, type: str) -> Object | None:
    return next((found for found in value_at(obj, "status", "conditions") or () if found.get("type") == type), None)
