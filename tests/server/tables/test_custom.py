from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from sandpool.api.columns import Column
from sandpool.api.resource import Object
from sandpool.server.tables.custom import custom_printer

READY = '.status.conditions[?(@.type=="Ready")].status'
OBJECT: Object = {
    "metadata": {"name": "w", "creationTimestamp": "2026-11-16T07:50:00Z"},
    "spec": {
        "replicas": 3,
        "number": 1.5,
        "whole": 3.0,
        "yes": True,
        "map": {"b": [None, 2], "a": "<&>"},
        "list": ["a", "b"],
        "null": None,
        "when": "2026-11-16T06:00:00Z",
    },
    "status": {"conditions": [{"type": "Ready", "status": "True"}]},
}


# The cells a kube-apiserver 1.36 made of the same object and columns.
@pytest.mark.parametrize(
    ("type", "path", "expected"),
    [
        ("string", READY, "True"),
        ("string", ".spec.replicas", "3"),
        ("string", ".spec.number", "1.5"),
        ("string", ".spec.whole", "3"),
        ("string", ".spec.yes", "true"),
        ("string", ".spec.map", '{"a":"\\u003c\\u0026\\u003e","b":[null,2]}'),
        ("string", ".spec.list", '["a","b"]'),
        ("string", ".spec.list[*]", "a"),
        ("string", ".spec.null", "<no value>"),
        ("string", ".spec.missing", None),
        ("integer", ".spec.replicas", 3),
        ("integer", ".spec.number", 1),
        ("integer", ".metadata.name", None),
        ("integer", ".spec.yes", None),
        ("integer", ".spec.null", None),
        ("number", ".spec.number", 1.5),
        ("number", ".spec.replicas", 3.0),
        ("boolean", ".spec.yes", True),
        ("boolean", ".spec.replicas", None),
        ("date", ".spec.when", "120m"),
        ("date", ".metadata.name", "<invalid>"),
        ("date", ".spec.replicas", None),
        ("other", ".spec.replicas", None),
        ("string", "not a path", None),
    ],
)
def test_cell_has_the_type_of_its_column(now: datetime, type: str, path: str, expected: Any) -> None:
    printer = custom_printer([Column("C", type, path)])
    assert printer.cells(OBJECT, now) == ["w", expected]


def test_age_is_the_default_column(now: datetime) -> None:
    printer = custom_printer([])
    assert [column.name for column in printer.columns] == ["Name", "Age"]
    assert printer.cells(OBJECT, now) == ["w", "10m"]


def test_headings_name_the_path_of_the_value() -> None:
    printer = custom_printer([Column("A", "string", ".a", priority=1), Column("B", "integer", ".b", "ours", "int32")])
    _, a, b = printer.columns
    assert (a.name, a.type, a.priority) == ("A", "string", 1)
    assert a.description == "Custom resource definition column (in JSONPath format): .a"
    assert (b.description, b.format) == ("ours", "int32")
