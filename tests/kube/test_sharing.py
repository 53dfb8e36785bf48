"""Telling JSON values apart, and sharing the parts that are the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.kube.sharing import same, shared, without_nulls

scalars = st.booleans() | st.integers(-3, 3) | st.sampled_from([0.0, 1.0, 2.5]) | st.sampled_from(["", "a", "b"])
null_free = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (1, 1, True),
        (1, True, False),
        (1, 1.0, False),
        (0, False, False),
        (None, None, True),
        ({"a": [1, {"b": 0}]}, {"a": [1, {"b": 0}]}, True),
        ({"a": [1, {"b": 0}]}, {"a": [1, {"b": False}]}, False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ([1], [1, 2], False),
        ({}, [], False),
    ],
)
def test_same_compares_json_values_by_type(a: Any, b: Any, expected: bool) -> None:
    assert same(a, b) is expected
    assert same(b, a) is expected


def test_without_nulls_drops_members_but_not_elements() -> None:
    assert without_nulls({"a": None, "b": [None, {"c": None, "d": 1}]}) == {"b": [None, {"d": 1}]}
    plain = {"a": [1, {"b": {}}]}
    assert without_nulls(plain) is plain


@given(null_free, null_free)
def test_shared_equals_the_new_value(old: Any, new: Any) -> None:
    result = shared(old, new)
    assert same(result, new)
    assert (result is old) == same(old, new)


def test_shared_takes_equal_parts_from_the_old_value() -> None:
    old: Any = {"a": {"b": 1}, "c": [{"d": 1}, {"e": 1}], "n": None}
    new = {"a": {"b": 1}, "c": [{"d": 1}, {"e": 2}], "n": None}
    result = shared(old, new)
    assert result["a"] is old["a"]
    assert result["c"][0] is old["c"][0]
    assert result["c"][1] is not old["c"][1]
    assert shared(old, {"a": {"b": 1}, "c": [{"d": 1}, {"e": 1}], "n": None}) is old
    assert shared({}, {"n": None}) == {"n": None}
