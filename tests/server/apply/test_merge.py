from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandpool.api.schema.shape import Shape
from sandpool.server.apply.merge import merge

SET = Shape("array", list_type="set", items=Shape("string"))
ITEMS = st.lists(st.sampled_from("abcdef"), unique=True)


@pytest.mark.parametrize(
    ("live", "applied", "merged"),
    [
        ({"size": 1, "color": "red"}, {"size": 2}, {"size": 2, "color": "red"}),
        ({"limits": {"a": "1"}}, {"limits": {"b": "2"}}, {"limits": {"a": "1", "b": "2"}}),
        ({"pair": {"left": "1"}}, {"pair": {"right": "2"}}, {"pair": {"right": "2"}}),
        ({"steps": ["a"]}, {"steps": ["b"]}, {"steps": ["b"]}),
        ({"tags": ["a"]}, {"tags": ["b"]}, {"tags": ["a", "b"]}),
        (
            {"parts": [{"name": "a", "slot": 1, "weight": 1}, {"name": "b", "slot": 1}]},
            {"parts": [{"name": "a", "weight": 2}]},
            {"parts": [{"name": "a", "slot": 1, "weight": 2}, {"name": "b", "slot": 1}]},
        ),
        # Saying nothing about the parts
        ({"limits": {"a": "1"}}, {"limits": {}}, {"limits": {"a": "1"}}),
        ({"limits": {"a": "1"}}, {"limits": None}, {"limits": {"a": "1"}}),
        ({"tags": ["a"]}, {"tags": []}, {"tags": ["a"]}),
        # Values without parts are replaced
        ({"steps": ["a"]}, {"steps": None}, {"steps": None}),
        ({"color": "red"}, {"color": None}, {"color": None}),
        ({"limits": {}}, {"limits": None}, {"limits": None}),
        ({"anything": {"a": 1}}, {"anything": {"a": {"b": 2}}}, {"anything": {"a": {"b": 2}}}),
        ({"anything": {"a": {"b": 2}}}, {"anything": {"a": 1}}, {"anything": {"a": 1}}),
        # What is called the same in the live list gives way to the one that is applied
        (
            {"parts": [{"name": "a", "slot": 1, "weight": 1}, {"name": "b", "slot": 1}, {"name": "a", "slot": 1}]},
            {"parts": [{"name": "a", "slot": 1}]},
            {"parts": [{"name": "a", "slot": 1}, {"name": "b", "slot": 1}]},
        ),
    ],
)
def test_merge_follows_the_schema(live: Any, applied: Any, merged: Any, spec: Shape) -> None:
    assert merge(live, applied, spec) == merged


@pytest.mark.parametrize(
    ("live", "applied", "merged"),
    [
        ("abc", "abc", "abc"),
        ("abc", "b", "abc"),
        ("abc", "cba", "cba"),
        ("abc", "xc", "abxc"),
        ("abc", "cx", "abcx"),
        ("abc", "xyz", "abcxyz"),
        ("abc", "axc", "abxc"),
        ("abc", "ca", "bca"),
        ("abcd", "dxb", "acdxb"),
    ],
)
def test_merged_items_keep_the_applied_order(live: str, applied: str, merged: str) -> None:
    assert "".join(merge(list(live), list(applied), SET)) == merged


@settings(deadline=None)
@given(ITEMS, ITEMS)
def test_items_of_both_appear_once_in_the_applied_order(live: list[str], applied: list[str]) -> None:
    merged = merge(live, applied, SET)
    assert sorted(merged) == sorted({*live, *applied})
    assert [each for each in merged if each in applied] == applied
    assert [each for each in merged if each not in applied] == [each for each in live if each not in applied]
    assert merge(merged, applied, SET) is merged


def test_unchanged_values_keep_their_identity(spec: Shape) -> None:
    live = {"size": 1, "limits": {"a": "1"}, "tags": ["a"], "parts": [{"name": "a", "slot": 1}]}
    same = {"size": 1, "limits": {"a": "1"}, "tags": ["a"], "parts": [{"name": "a", "slot": 1}]}
    assert merge(live, same, spec) is live
    changed = merge(live, {"size": 2}, spec)
    assert changed["parts"] is live["parts"]
