"""Merge patches: the RFC's table, what kube-apiserver does beyond it, and sharing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.kube.patches import MalformedPatch, merge_diff, merge_patch, merge_patch_object
from sandpool.kube.sharing import same

scalars = st.booleans() | st.integers(-3, 3) | st.sampled_from([0.0, 1.0, 2.5]) | st.sampled_from(["", "a", "b"])
null_free = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(st.sampled_from("abcd"), null_free, max_size=4)


@pytest.mark.parametrize(
    ("target", "patch", "expected"),
    [
        # RFC 7386 appendix A
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        # beyond the RFC, as kube-apiserver does it
        ({}, {"a": [{"b": None, "c": [None, {"d": None}]}]}, {"a": [{"c": [None, {}]}]}),
        ({"a": None}, {"a": {"b": None}}, {"a": {}}),
        # not equal in JSON, though equal in Python
        ({"a": 1}, {"a": True}, {"a": True}),
        ({"a": [0]}, {"a": [False]}, {"a": [False]}),
    ],
)
def test_merge_patch_follows_the_rfc_and_kube_apiserver(target: Any, patch: Any, expected: Any) -> None:
    assert same(merge_patch(target, patch), expected)


def test_merge_patch_shares_unchanged_parts() -> None:
    target = {"metadata": {"labels": {"a": "b"}}, "spec": {"list": [{"x": 1}]}, "status": {"n": 1}}
    patched = merge_patch(target, {"spec": {"list": [{"x": 1}]}, "status": {"n": 2}})
    assert patched["metadata"] is target["metadata"]
    assert patched["spec"] is target["spec"]
    assert patched["status"] == {"n": 2}
    assert target["status"] == {"n": 1}


@pytest.mark.parametrize("patch", [{}, {"a": {"b": [1, {"c": "d"}]}}, {"x": None}, {"a": {}}, {"a": {"y": None}}])
def test_merge_patch_without_changes_returns_its_argument(patch: Any) -> None:
    target = {"a": {"b": [1, {"c": "d"}]}}
    assert merge_patch(target, patch) is target


@given(objects, objects)
def test_applied_merge_diff_gives_the_new_object(old: Any, new: Any) -> None:
    diff = merge_diff(old, new)
    if diff is None:
        assert same(old, new)
    else:
        assert same(merge_patch(old, diff), new)


@given(objects, objects)
def test_merge_diff_has_no_equal_fields(old: Any, new: Any) -> None:
    def check(diff: Any, before: Any) -> None:
        for key, change in diff.items():
            if isinstance(change, dict) and isinstance(before.get(key), dict):
                assert change
                check(change, before[key])
            else:
                assert key not in before or not same(before[key], change)

    check(merge_diff(old, new) or {}, old)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"a": 1}, {"a": 1}, None),
        ({"a": 1}, {"a": True}, {"a": True}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1}}, {"a": {"c": None}}),
        ({"a": {"b": 1}}, {"a": {}}, {"a": {"b": None}}),
        ({}, {"a": {}}, {"a": {}}),
        ({"a": [1]}, {"a": [1, 2]}, {"a": [1, 2]}),
        ({}, {"a": None}, None),
        ({"a": 1}, {"a": None}, {"a": None}),
        ({"a": {"b": 1}}, {"a": {"b": 1, "c": None}}, None),
        ([1], [2], [2]),
        ("x", "x", None),
    ],
)
def test_merge_diff_names_changed_and_removed_fields(old: Any, new: Any, expected: Any) -> None:
    assert same(merge_diff(old, new), expected)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


def test_deep_nesting_is_rejected_without_a_crash() -> None:
    with pytest.raises(MalformedPatch, match="exceeded max depth"):
        merge_patch({}, nested(100_000))
    with pytest.raises(MalformedPatch, match="exceeded max depth"):
        merge_diff(nested(100_000), nested(100_001))


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        (None, "Invalid JSON Patch"),
        ([1], "error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}"),
        ("x", "error decoding patch: json: cannot unmarshal string into Go value of type map[string]interface {}"),
        (True, "error decoding patch: json: cannot unmarshal bool into Go value of type map[string]interface {}"),
    ],
)
def test_object_is_patched_by_an_object_only(patch: Any, message: str) -> None:
    with pytest.raises(MalformedPatch) as raised:
        merge_patch_object({}, patch)
    assert raised.value.status()["message"] == message
    assert raised.value.code == 400
