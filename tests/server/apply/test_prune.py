from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.schema.shape import Shape
from sandpool.server.apply.fieldset import FieldSet, decode
from sandpool.server.apply.prune import prune, remove, with_declared

A1 = 'k:{"name":"a","slot":1}'


@pytest.mark.parametrize(
    ("merged", "previous", "owned", "left"),
    [
        ({"size": 1, "color": "red"}, {"f:size": {}}, {}, {"color": "red"}),
        ({"size": 1}, {"f:size": {}}, {"f:size": {}}, {"size": 1}),
        # A field without owner stays, unless its parent is removed
        ({"size": 1, "color": "default"}, {"f:size": {}}, {}, {"color": "default"}),
        (
            {"parts": [{"name": "a", "slot": 1, "weight": 7}], "size": 1},
            {"f:parts": {A1: {".": {}, "f:name": {}}}},
            {},
            {"size": 1},
        ),
        (
            {"parts": [{"name": "a", "slot": 1, "weight": 7}], "size": 1},
            {"f:parts": {A1: {".": {}, "f:name": {}}}, "f:size": {}},
            {"f:parts": {A1: {".": {}, "f:name": {}}}},
            {"parts": [{"name": "a", "slot": 1, "weight": 7}]},
        ),
        # A declared field goes with the last of its parts that is owned
        ({"inner": {"a": "1"}, "size": 1}, {"f:inner": {"f:a": {}}}, {}, {"size": 1}),
        ({"inner": {"a": "1", "b": "default"}, "size": 1}, {"f:inner": {"f:a": {}}}, {}, {"size": 1}),
        (
            {"inner": {"a": "1", "b": "2"}},
            {"f:inner": {"f:a": {}}},
            {"f:inner": {"f:b": {}}},
            {"inner": {"b": "2"}},
        ),
        (
            {"limits": {"a": "1", "b": "2"}},
            {"f:limits": {"f:a": {}}},
            {"f:limits": {"f:b": {}}},
            {"limits": {"b": "2"}},
        ),
        ({"tags": ["a", "b"]}, {"f:tags": {'v:"a"': {}}}, {"f:tags": {'v:"b"': {}}}, {"tags": ["b"]}),
    ],
)
def test_prune_removes_released_fields(merged: Any, previous: Any, owned: Any, left: Any, spec: Shape) -> None:
    assert prune(merged, decode(previous), decode(owned), spec) == left


@pytest.mark.parametrize(
    ("value", "doomed", "left"),
    [
        ({"size": 1}, {"f:color": {}}, {"size": 1}),
        ({"limits": {"a": "1"}, "size": 1}, {"f:limits": {"f:a": {}}}, {"limits": None, "size": 1}),
        ({"tags": ["a"], "size": 1}, {"f:tags": {'v:"a"': {}}}, {"tags": None, "size": 1}),
        ({"limits": {}, "size": 1}, {"f:limits": {"f:a": {}}}, {"limits": None, "size": 1}),
    ],
)
def test_remove_removes_the_given_fields(value: Any, doomed: Any, left: Any, spec: Shape) -> None:
    assert remove(value, decode(doomed), spec) == left


def test_unchanged_values_keep_their_identity(spec: Shape) -> None:
    value = {"limits": {"a": "1"}, "tags": ["a"], "size": 1}
    assert remove(value, decode({"f:limits": {"f:b": {}}, "f:tags": {'v:"b"': {}}}), spec) is value
    assert remove(value, decode({"f:size": {}}), spec)["limits"] is value["limits"]


def test_declared_fields_get_their_parents(spec: Shape) -> None:
    fields: FieldSet = decode({"f:inner": {"f:a": {}}, "f:limits": {"f:a": {}}, "f:parts": {A1: {"f:name": {}}}})
    expected = {
        "f:inner": {".": {}, "f:a": {}},
        "f:limits": {".": {}, "f:a": {}},
        "f:parts": {".": {}, A1: {"f:name": {}}},
    }
    assert with_declared(fields, spec).fields == expected
