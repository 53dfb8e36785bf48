from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandpool.api.kinds import POD, SERVICE
from sandpool.api.schema.core import shape_of
from sandpool.api.schema.shape import Shape
from sandpool.server.apply.comparison import changes_of, compare, created_trees, fields_of, json_equal, zero_value
from sandpool.server.apply.fieldset import EMPTY
from sandpool.server.apply.schema_paths import InvalidListItem

A1, A2 = 'k:{"name":"a","slot":1}', 'k:{"name":"a","slot":2}'


@pytest.mark.parametrize(
    ("old", "new", "written", "removed"),
    [
        # Scalars
        ({"size": 1}, {"size": 1}, {}, {}),
        ({"size": 1}, {"size": 2}, {"f:size": {}}, {}),
        ({"size": 1}, {"size": True}, {"f:size": {}}, {}),
        ({}, {"color": "red"}, {"f:color": {}}, {}),
        ({"color": "red"}, {}, {}, {"f:color": {}}),
        ({"color": "red"}, {"color": None}, {"f:color": {}}, {}),
        # Maps: a new one is written with its parts, an old one is not written when its parts are
        ({}, {"limits": {"a": "1"}}, {"f:limits": {".": {}, "f:a": {}}}, {}),
        ({"limits": {"a": "1"}}, {"limits": {"a": "1", "b": "2"}}, {"f:limits": {"f:b": {}}}, {}),
        (
            {"limits": {"a": "1", "b": "2"}},
            {"limits": {"b": "3"}},
            {"f:limits": {"f:b": {}}},
            {"f:limits": {"f:a": {}}},
        ),
        ({"limits": {"a": "1"}}, {}, {}, {"f:limits": {".": {}, "f:a": {}}}),
        ({"limits": {"a": "1"}}, {"limits": {}}, {}, {"f:limits": {"f:a": {}}}),
        ({"limits": {"a": "1"}}, {"limits": None}, {}, {"f:limits": {"f:a": {}}}),
        ({"limits": {}}, {"limits": {"a": "1"}}, {"f:limits": {"f:a": {}}}, {}),
        ({"limits": None}, {"limits": {"a": "1"}}, {"f:limits": {"f:a": {}}}, {}),
        ({}, {"limits": {}}, {"f:limits": {}}, {}),
        ({"limits": None}, {"limits": {}}, {"f:limits": {}}, {}),
        # Atomic maps and lists are values without parts
        ({"pair": {"left": "1"}}, {"pair": {"left": "2"}}, {"f:pair": {}}, {}),
        ({}, {"pair": {"left": "2"}}, {"f:pair": {}}, {}),
        ({"steps": ["a"]}, {"steps": ["a", "b"]}, {"f:steps": {}}, {}),
        ({"steps": ["a"]}, {"steps": ["a"]}, {}, {}),
        # Sets: the order has no owner
        ({"tags": ["a", "b"]}, {"tags": ["b", "a"]}, {}, {}),
        ({"tags": ["a"]}, {"tags": ["b"]}, {"f:tags": {'v:"b"': {}}}, {"f:tags": {'v:"a"': {}}}),
        ({}, {"tags": ["a"]}, {"f:tags": {".": {}, 'v:"a"': {}}}, {}),
        # Keyed lists: a key that is left out has its default
        (
            {"parts": [{"name": "a", "weight": 1}]},
            {"parts": [{"name": "a", "slot": 1, "weight": 2}]},
            {"f:parts": {A1: {"f:slot": {}, "f:weight": {}}}},
            {},
        ),
        (
            {"parts": [{"name": "a", "slot": 1}]},
            {"parts": [{"name": "a", "slot": 2}]},
            {"f:parts": {A2: {".": {}, "f:name": {}, "f:slot": {}}}},
            {"f:parts": {A1: {".": {}, "f:name": {}, "f:slot": {}}}},
        ),
        # Items that are called the same are owned together
        ({"tags": ["a"]}, {"tags": ["a", "a"]}, {"f:tags": {'v:"a"': {}}}, {"f:tags": {'v:"a"': {}}}),
        ({"tags": ["a", "a"]}, {"tags": ["a", "a"]}, {}, {}),
        ({"tags": ["a", "a"]}, {}, {}, {"f:tags": {".": {}, 'v:"a"': {}}}),
        # Values without a schema: maps by key, lists as a whole, and types that change
        ({"anything": {"a": {"b": 1}}}, {"anything": {"a": {"b": 2}}}, {"f:anything": {"f:a": {"f:b": {}}}}, {}),
        ({"anything": {"a": [1]}}, {"anything": {"a": [2]}}, {"f:anything": {"f:a": {}}}, {}),
        (
            {"anything": {"a": {"b": 1}}},
            {"anything": {"a": "x"}},
            {"f:anything": {"f:a": {}}},
            {"f:anything": {"f:a": {"f:b": {}}}},
        ),
        ({"anything": {"a": "x"}}, {"anything": {"a": {"b": 1}}}, {"f:anything": {"f:a": {".": {}, "f:b": {}}}}, {}),
        ({"anything": {"a": [1]}}, {"anything": {"a": {"b": 1}}}, {"f:anything": {"f:a": {".": {}, "f:b": {}}}}, {}),
    ],
)
def test_compare_returns_written_and_removed_fields(
    old: Any, new: Any, written: Any, removed: Any, spec: Shape
) -> None:
    assert tuple(each.fields for each in compare(old, new, spec)) == (written, removed)


@pytest.mark.parametrize(
    ("value", "fields"),
    [
        ({"size": 1, "color": None}, {"f:size": {}, "f:color": {}}),
        ({"inner": {"a": "1"}}, {"f:inner": {"f:a": {}}}),
        ({"inner": {}}, {"f:inner": {}}),
        ({"limits": {"a": "1"}}, {"f:limits": {"f:a": {}}}),
        ({"pair": {"left": "1"}, "steps": []}, {"f:pair": {}, "f:steps": {}}),
        ({"tags": ["a"]}, {"f:tags": {'v:"a"': {}}}),
        ({"tags": []}, {}),
        ({"tags": None}, {"f:tags": {}}),
        ({"parts": [{"name": "a"}]}, {"f:parts": {A1: {".": {}, "f:name": {}}}}),
        # Keys of maps count themselves, declared fields do not
        ({"anything": {"a": {"b": 1}}}, {"f:anything": {"f:a": {".": {}, "f:b": {}}}}),
        ({"tags": ["a", "a"]}, {"f:tags": {'v:"a"': {}}}),
    ],
)
def test_fields_of_a_value_are_listed(value: Any, fields: Any, spec: Shape) -> None:
    assert fields_of(value, spec).fields == fields


@pytest.mark.parametrize(
    "items", [{"tags": [{}]}, {"tags": [[]]}, {"tags": [None]}, {"parts": ["a"]}, {"parts": [None]}]
)
def test_ambiguous_list_items_are_rejected(items: Any, spec: Shape) -> None:
    with pytest.raises(InvalidListItem):
        compare({}, items, spec)
    with pytest.raises(InvalidListItem):
        fields_of(items, spec)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from("ab"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), JSON, max_size=3)


@settings(deadline=None)
@given(OBJECTS, OBJECTS)
def test_comparison_is_empty_if_and_only_if_values_are_equal(old: Any, new: Any) -> None:
    # Of undescribed values; a set may change its order without anything being written.
    written, removed = compare(old, new, Shape())
    if json_equal(old, new):
        assert (written, removed) == (EMPTY, EMPTY)
    else:
        assert written or removed


@settings(deadline=None)
@given(OBJECTS, OBJECTS)
def test_written_and_removed_fields_are_symmetric(old: Any, new: Any) -> None:
    written, removed = compare(old, new, Shape())
    back, gone = compare(new, old, Shape())
    assert gone <= written
    assert removed <= back


TEXTS = st.dictionaries(st.sampled_from("ab"), st.sampled_from("xy"), max_size=2)
CUSTOM = st.fixed_dictionaries(
    {},
    optional={
        "size": st.integers(0, 2),
        "tags": st.lists(st.sampled_from("abc"), max_size=3),
        "steps": st.lists(st.sampled_from("abc"), max_size=3),
        "limits": st.none() | TEXTS,
        "pair": TEXTS,
        "parts": st.lists(st.builds(lambda name, notes: {"name": name, "notes": notes}, st.sampled_from("ab"), TEXTS)),
        "anything": JSON,
    },
)
CONTAINERS = st.lists(st.builds(lambda name, image: {"name": name, "image": image}, st.sampled_from("ab"), JSON))
PODS = st.fixed_dictionaries(
    {}, optional={"containers": CONTAINERS, "nodeSelector": TEXTS, "securityContext": OBJECTS, "hostname": st.just("a")}
)
SERVICES = st.fixed_dictionaries({}, optional={"selector": TEXTS, "type": st.just("ClusterIP"), "clusterIP": JSON})


@settings(deadline=None)
@pytest.mark.parametrize("kind", ["custom", "pod", "service"])
@given(st.data())
def test_creation_writes_what_its_comparison_with_nothing_writes(kind: str, shape: Shape, data: st.DataObject) -> None:
    """Also the second time, when the spec is known. Pods and Services have structs from the start, custom kinds not."""
    shape = {"custom": shape, "pod": shape_of(POD), "service": shape_of(SERVICE)}[kind]
    specs = {"custom": CUSTOM, "pod": PODS, "service": SERVICES}[kind]
    new: dict[str, Any] = {"metadata": {"name": "a", "labels": data.draw(TEXTS)}}
    if data.draw(st.booleans()):
        new["spec"] = data.draw(specs)
    plainly = compare(zero_value(shape), new, shape)
    assert changes_of(created_trees(new, shape)) == plainly
    assert changes_of(created_trees(new, shape)) == plainly


def test_equal_numbers_are_the_same_and_booleans_are_not_numbers() -> None:
    assert json_equal({"a": [1]}, {"a": [1.0]})
    assert not json_equal({"a": [1]}, {"a": [True]})
    assert not json_equal({"a": [0]}, {"a": [False]})
