from __future__ import annotations

import gc
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandpool.server.apply import fieldset
from sandpool.server.apply.caches import BUDGET, CACHES, OVERHEAD
from sandpool.server.apply.fieldset import EMPTY, FieldSet, InvalidFieldsV1, Path, decode, make, of

ELEMENTS = st.sampled_from(["f:a", "f:b", "f:c", 'k:{"name":"x"}', 'v:"x"', "v:1", "i:0"])
PATHS = st.lists(ELEMENTS, min_size=1, max_size=4).map(tuple)
SETS = st.lists(PATHS, max_size=8).map(lambda paths: of(*paths))


def paths(fields: FieldSet) -> set[Path]:
    return set(fields)


@settings(deadline=None)
@given(SETS, SETS)
def test_operations_equal_those_of_path_sets(a: FieldSet, b: FieldSet) -> None:
    assert paths(a | b) == paths(a) | paths(b)
    assert paths(a & b) == paths(a) & paths(b)
    assert paths(a - b) == paths(a) - paths(b)
    assert (a <= b) == (paths(a) <= paths(b))


@settings(deadline=None)
@given(SETS, SETS)
def test_without_removes_recursively(a: FieldSet, b: FieldSet) -> None:
    prefixes = paths(b)
    left = {path for path in a if not any(path[:depth] in prefixes for depth in range(1, len(path) + 1))}
    assert paths(a.without(b)) == left


@settings(deadline=None)
@given(st.lists(PATHS, max_size=8).flatmap(lambda given: st.tuples(st.just(given), st.permutations(given))))
def test_equal_sets_are_one_object(orders: tuple[list[Path], list[Path]]) -> None:
    one, other = orders
    assert of(*one) is of(*other)


@settings(deadline=None)
@given(SETS, SETS, SETS)
def test_set_operations_obey_the_laws(a: FieldSet, b: FieldSet, c: FieldSet) -> None:
    assert a | b is b | a
    assert a & b is b & a
    assert (a | b) | c is a | (b | c)
    assert (a - b) | (a & b) is a
    assert (a - b) & b is EMPTY
    assert a - (b | c) is (a - b) - c
    assert bool(a) == (a is not EMPTY)


@settings(deadline=None)
@given(SETS)
def test_encoding_is_reversible(fields: FieldSet) -> None:
    assert decode(fields.fields) is fields
    assert decode(orjson.loads(orjson.dumps(fields.fields))) is fields
    assert decode(fields.fields).fields is fields.fields


@settings(deadline=None)
@given(SETS, PATHS)
def test_membership_equals_that_of_the_paths(fields: FieldSet, path: Path) -> None:
    assert (path in fields) == (path in paths(fields))
    assert () not in fields


@settings(deadline=None)
@given(SETS)
def test_branches_equal_the_paths(fields: FieldSet) -> None:
    assert {(*path, element) for path, members in fields.branches for element in members} == paths(fields)


def test_encoded_form_is_ordered() -> None:
    fields = of(
        ("f:spec", "f:ports", 'k:{"port":443}', "f:name"),
        ("f:spec", "f:ports", 'k:{"port":443}'),
        ("f:spec", "f:ports", 'k:{"port":80}'),
        ("f:spec", "f:tags", 'v:"b"'),
        ("f:data",),
    )
    assert orjson.dumps(fields.fields) == orjson.dumps(
        {
            "f:data": {},
            "f:spec": {
                "f:ports": {'k:{"port":80}': {}, 'k:{"port":443}': {".": {}, "f:name": {}}},
                "f:tags": {'v:"b"': {}},
            },
        }
    )
    assert (
        repr(fields)
        == '{.data, .spec.ports[port=80], .spec.ports[port=443], .spec.ports[port=443].name, .spec.tags[="b"]}'
    )


@pytest.mark.parametrize(
    ("encoded", "expected"),
    [
        ({}, EMPTY),
        ({"f:a": {}}, of(("f:a",))),
        ({"f:a": {".": {}}}, of(("f:a",))),
        ({"f:a": {"f:b": {}}}, of(("f:a", "f:b"))),
        ({"f:a": {".": {}, "f:b": {}}}, of(("f:a",), ("f:a", "f:b"))),
        ({"f:a": {"x:unknown": {}}, "y:unknown": {"f:b": {}}}, of(("f:a",))),
        ({'k:{"b":1, "a":2}': {}}, of(('k:{"a":2,"b":1}',))),
    ],
)
def test_encoded_sets_are_decoded(encoded: dict[str, Any], expected: FieldSet) -> None:
    assert decode(encoded) is expected


@pytest.mark.parametrize("encoded", [[], "x", {"a": {}}, {"f:a": []}, {"f:a": {"spec": {}}}, {"k:1": {}}])
def test_decode_rejects_what_is_not_a_field_set(encoded: Any) -> None:
    with pytest.raises(InvalidFieldsV1):
        decode(encoded)


def test_unused_sets_are_freed() -> None:
    made = of(("f:never-used-elsewhere", "f:again"))
    assert any("f:never-used-elsewhere" in each.children for each in fieldset._interned.values())
    del made
    CACHES.clear()
    gc.collect()
    assert not any("f:never-used-elsewhere" in each.children for each in fieldset._interned.values())


def test_small_changes_of_a_large_set_do_not_fill_memory() -> None:
    """Patches that each add one key to an object of many keys make a new large set each time."""
    large = make([f"f:{number}" for number in range(20_000)], {})
    for number in range(60):
        assert (large | of((f"f:new-{number}",))).fields
    gc.collect()
    assert sum(len(each.members) for each in fieldset._interned.values()) * OVERHEAD < 1.1 * BUDGET
