"""Strategic merge patch: every directive, every refusal. Results and wording are those of kube-apiserver 1.36."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.api.schema.shape import Shape
from sandpool.kube.errors import MalformedPatch, PatchError, UnworkablePatch
from sandpool.kube.strategic import strategic_merge_patch

TEXT = Shape(type="string")


def keyed(key: str, items: Shape, strategy: str = "merge") -> Shape:
    return Shape(type="array", items=items, patch_strategy=strategy, patch_merge_key=key)


ENV = Shape(type="object", name="io.k8s.api.core.v1.EnvVar", properties={"name": TEXT, "value": TEXT})
CONTAINER = Shape(
    type="object",
    name="io.k8s.api.core.v1.Container",
    properties={
        "name": TEXT,
        "image": TEXT,
        "args": Shape(type="array", items=TEXT),
        "env": keyed("name", ENV),
        "resources": Shape(type="object", properties={"limits": Shape(type="object", additional=TEXT)}),
    },
)
SPEC = Shape(
    type="object",
    name="io.k8s.api.core.v1.PodSpec",
    properties={
        "containers": keyed("name", CONTAINER),
        "volumes": keyed("name", Shape(type="object"), "merge,retainKeys"),
        "nodeSelector": Shape(type="object", additional=TEXT),
        "whole": Shape(type="object", patch_strategy="replace", properties={"a": TEXT, "b": TEXT}),
        "finalizers": Shape(type="array", items=TEXT, patch_strategy="merge"),
        "unkeyed": Shape(type="array", items=Shape(type="object"), patch_strategy="merge"),
    },
)


def names(*values: str) -> list[dict[str, str]]:
    return [{"name": value} for value in values]


A, B, C = {"name": "a", "image": "1"}, {"name": "b", "image": "2"}, {"name": "c", "image": "3"}


@pytest.mark.parametrize(
    ("target", "patch", "expected"),
    [
        pytest.param({"x": 1, "y": 2}, {"x": 3, "y": None, "z": None}, {"x": 3}, id="plain members"),
        pytest.param({"containers": [A, B]}, {"containers": [{"name": "b", "image": "9"}]},
                     {"containers": [A, {"name": "b", "image": "9"}]}, id="elements merge by key"),
        pytest.param({"containers": [A]}, {"containers": [C]}, {"containers": [C, A]}, id="new elements go first"),
        pytest.param({"containers": [A, B]}, {"containers": names("b", "c", "a")},
                     {"containers": [B, {"name": "c"}, A]}, id="the patch decides the order"),
        pytest.param({"containers": [A, B, C]}, {"containers": names("c")}, {"containers": [A, B, C]},
                     id="the rest stays where it was"),
        pytest.param({"containers": [A, B]}, {"containers": [{"$patch": "delete", "name": "a"}]},
                     {"containers": [B]}, id="delete an element"),
        pytest.param({"containers": [A, B]}, {"containers": [{"$patch": "delete", "name": "z"}]},
                     {"containers": [A, B]}, id="delete an element that is not there"),
        pytest.param({"containers": [A, B]}, {"containers": [{"$patch": "replace"}, C]},
                     {"containers": [C]}, id="replace a list"),
        pytest.param({"containers": [A, A]}, {"containers": [{"name": "a", "image": "9"}]},
                     {"containers": [{"name": "a", "image": "9"}, A]}, id="of two with one key the first merges"),
        pytest.param({"containers": [{**A, "args": ["x"], "env": names("E")}]},
                     {"containers": [{"name": "a", "args": ["y"], "env": [{"name": "F", "value": None}]}]},
                     {"containers": [{**A, "args": ["y"], "env": names("F", "E")}]}, id="nested lists"),
        pytest.param({"containers": [A]}, {"containers": [{"name": "n", "image": None}]},
                     {"containers": [{"name": "n"}, A]}, id="nulls of a new element are dropped"),
        pytest.param({"containers": [A]}, {"containers": None}, {}, id="null removes a list"),
        pytest.param({}, {"containers": [{"$patch": "delete", "name": "a"}, B]}, {"containers": [B]},
                     id="directives in a new list are dropped"),
        pytest.param({}, {"nodeSelector": {"$patch": "replace", "k": "v"}}, {}, id="a directive where nothing was"),
        pytest.param({"nodeSelector": {"k": "v"}}, {"nodeSelector": {"$patch": "replace", "q": "r", "n": None}},
                     {"nodeSelector": {"q": "r"}}, id="replace an object"),
        pytest.param({"nodeSelector": {"k": "v"}}, {"nodeSelector": {"$patch": "delete"}}, {"nodeSelector": {}},
                     id="delete an object"),
        pytest.param({"nodeSelector": "text"}, {"nodeSelector": {"k": None, "l": "m"}}, {"nodeSelector": {"l": "m"}},
                     id="another type replaces"),
        pytest.param({"nodeSelector": "text"}, {"nodeSelector": {"$patch": "delete"}}, {},
                     id="a directive instead of another type"),
        pytest.param({"whole": {"a": "1"}}, {"whole": {"b": "2", "c": None}}, {"whole": {"b": "2"}},
                     id="replace strategy"),
        pytest.param({"volumes": [{"name": "v", "emptyDir": {}}]},
                     {"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/"}}]},
                     {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}, id="retainKeys"),
        pytest.param({"a": 1, "finalizers": ["x"]},
                     {"$retainKeys": ["finalizers"], "$setElementOrder/finalizers": ["x"], "a": None},
                     {"finalizers": ["x"]}, id="retainKeys with directives and nulls"),
        pytest.param({"containers": [A, B, C]}, {"$setElementOrder/containers": names("c", "a")},
                     {"containers": [B, C, A]}, id="order alone"),
        pytest.param({"containers": [A, B]},
                     {"$setElementOrder/containers": names("b", "c", "a"), "containers": [{"name": "c"}]},
                     {"containers": [B, {"name": "c"}, A]}, id="order with an addition"),
        pytest.param({"containers": [A, B]},
                     {"$setElementOrder/containers": names("b"), "containers": [{"$patch": "delete", "name": "a"}]},
                     {"containers": [B]}, id="order with a deletion"),
        pytest.param({}, {"$setElementOrder/containers": names("a", "b"), "containers": names("a", "b")},
                     {"containers": names("a", "b")}, id="order of a new list"),
        pytest.param({}, {"$setElementOrder/containers": names("a")}, {}, id="order of no list"),
        pytest.param({"containers": [{**A, "args": ["x", "y"]}]},
                     {"containers": [{"name": "a", "$setElementOrder/args": ["y", "x"]}]},
                     {"containers": [{**A, "args": ["y", "x"]}]}, id="order of plain values"),
        pytest.param({"finalizers": ["a", "b"]}, {"finalizers": ["c", "a"]}, {"finalizers": ["c", "a", "b"]},
                     id="plain values merge as a set"),
        pytest.param({"finalizers": ["a", "b"]}, {"finalizers": ["c", "c"]}, {"finalizers": ["c", "a", "b"]},
                     id="plain values once"),
        pytest.param({"finalizers": ["a", "b"]}, {"$deleteFromPrimitiveList/finalizers": ["a", "z"]},
                     {"finalizers": ["b"]}, id="delete plain values"),
        pytest.param({"finalizers": ["a", "b"]},
                     {"$deleteFromPrimitiveList/finalizers": ["a"], "$setElementOrder/finalizers": ["c", "b"],
                      "finalizers": ["c"]},
                     {"finalizers": ["c", "b"]}, id="add, order and delete plain values"),
        pytest.param({}, {"$deleteFromPrimitiveList/finalizers": ["a"]}, {}, id="delete from no list"),
        pytest.param({"finalizers": ["a"]}, {"$deleteFromPrimitiveList/finalizers": "a"}, {"finalizers": ["a"]},
                     id="delete with another type"),
        pytest.param({"finalizers": ["a"]}, {"$deleteFromPrimitiveList/finalizers": None}, {},
                     id="delete with null removes the list"),
        pytest.param({"unknown": [1, 2]}, {"unknown": [3]}, {"unknown": [3]}, id="lists of no known type are replaced"),
        pytest.param({"unknown": {"a": {"b": 1}}}, {"unknown": {"a": {"c": 2}}}, {"unknown": {"a": {"b": 1, "c": 2}}},
                     id="objects of no known type merge"),
        pytest.param({"a": 1}, None, {"a": 1}, id="null changes nothing"),
    ],
)  # fmt: skip
def test_strategic_merge_patch_applies_every_directive(target: Any, patch: Any, expected: Any) -> None:
    before = repr((target, patch))
    assert strategic_merge_patch(target, patch, SPEC) == expected
    assert repr((target, patch)) == before


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ({"$patch": "bogus"}, "unknown patch type: bogus in map: map[$patch:bogus]"),
        ({"$patch": "merge", "x": True}, "unknown patch type: merge in map: map[$patch:merge x:true]"),
        ({"$patch": 3}, "unknown patch type: %!s(int64=3) in map: map[$patch:3]"),
        ({"containers": [{"image": "x"}]}, "map: map[image:x] does not contain declared merge key: name"),
        (
            {"containers": [{"$patch": "bogus", "name": "a"}]},
            "unknown patch type: bogus in map: map[$patch:bogus name:a]",
        ),
        ({"containers": [{"$patch": "merge"}]}, "merging lists cannot yet be specified in the patch"),
        ({"containers": [{"$patch": "delete"}]}, "map: map[$patch:delete] does not contain declared merge key: name"),
        ({"containers": [3]}, "list element types are not identical: [[map[image:1 name:a]] [3]]"),
        ({"containers": [None]}, "list element types are not identical: [[map[image:1 name:a]] [<nil>]]"),
        ({"finalizers": ["a", 3]}, "list element types are not identical: [[f] [a 3]]"),
        (
            {"$deleteFromPrimitiveList/finalizers": [1.5]},
            "list element types are not identical: [[f] [1.5]]",
        ),
        ({"unkeyed": [{"a": 1}]}, "cannot merge lists without merge key for struct"),
        ({"$setElementOrder/containers": 3}, "expected a []interface {}, but received a int64"),
        ({"$setElementOrder/containers": [3]}, "value for key 0 is not a map"),
        (
            {"$setElementOrder/bogus": []},
            'unable to find api field in struct PodSpec for the json field "bogus"',
        ),
        (
            {"$setElementOrder/containers": names("b"), "containers": [A]},
            "The order in patch list:\n[map[image:1 name:a]]\n doesn't match $setElementOrder list:\n[map[name:b]]\n",
        ),
        (
            {"$setElementOrder/containers": [{"x": "b"}], "containers": [A]},
            "map: map[x:b] does not contain declared merge key: name",
        ),
        (
            {"$setElementOrder/containers": names("b"), "containers": ["a"]},
            "expected a map[string]interface {}, but received a string",
        ),
        (
            {"$setElementOrder/containers": [], "containers": None},
            "expected a []interface {}, but received a %!s(<nil>)",
        ),
        ({"containers": [{"name": {}}]}, "runtime error: comparing uncomparable type map[string]interface {}"),
    ],
)
def test_contradictory_directive_is_rejected(patch: Any, message: str) -> None:
    target = {"containers": [A], "finalizers": ["f"], "unkeyed": [{"a": 0}]}
    with pytest.raises(UnworkablePatch) as raised:
        strategic_merge_patch(target, patch, SPEC)
    assert raised.value.status() == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "code": 500,
    }


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ([], "json: cannot unmarshal array into Go value of type map[string]interface {}"),
        ("x", "json: cannot unmarshal string into Go value of type map[string]interface {}"),
        ({"$retainKeys": 3}, "invalid patch format of retainKeys"),
        ({"$retainKeys": ["a"], "b": 1}, "invalid patch format of retainKeys"),
        ({"$setElementOrder": []}, "invalid patch format of setElementOrder list"),
        ({"$deleteFromPrimitiveList": ["a"]}, "invalid patch format of primitive list"),
    ],
)
def test_malformed_directive_is_a_bad_request(patch: Any, message: str) -> None:
    with pytest.raises(MalformedPatch) as raised:
        strategic_merge_patch({}, patch, SPEC)
    assert (raised.value.code, raised.value.reason, raised.value.message) == (400, "BadRequest", message)


def test_unchanged_parts_are_shared() -> None:
    target = {"containers": [A, B], "nodeSelector": {"k": "v"}, "finalizers": ["f"]}
    patched = strategic_merge_patch(target, {"containers": [{"name": "b", "image": "9"}], "finalizers": ["f"]}, SPEC)
    assert patched["nodeSelector"] is target["nodeSelector"]
    assert patched["finalizers"] is target["finalizers"]
    assert patched["containers"][0] is A
    for patch in (
        {},
        {"containers": [B]},
        {"$setElementOrder/containers": names("a", "b")},
        {"nodeSelector": {"z": None}},
    ):
        assert strategic_merge_patch(target, patch, SPEC) is target


def test_deep_nesting_is_rejected_without_a_crash() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"a": deep}
    with pytest.raises(MalformedPatch, match="exceeded max depth"):
        strategic_merge_patch({}, deep, SPEC)


def test_long_lists_take_linear_time() -> None:
    """Ten thousand elements reversed by name: a comparison of all pairs would take minutes."""
    many = [{"name": str(n)} for n in range(10_000)]
    patched = strategic_merge_patch({"containers": many}, {"containers": many[::-1]}, SPEC)
    assert patched["containers"] == many[::-1]


values = st.recursive(
    st.none() | st.integers(0, 2) | st.sampled_from("abc"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "a", "$patch", "$retainKeys"]), inner, max_size=3)
    ),
    max_leaves=6,
)
patches = st.dictionaries(
    st.sampled_from(
        [
            *SPEC.properties,
            "$patch",
            "$retainKeys",
            "$setElementOrder/containers",
            "$setElementOrder/finalizers",
            "$deleteFromPrimitiveList/finalizers",
        ]
    ),
    values,
    max_size=4,
)


@given(patches, patches)
def test_any_patch_is_applied_or_rejected_without_changing_its_arguments(target: Any, patch: Any) -> None:
    before = repr((target, patch))
    with contextlib.suppress(PatchError):
        assert isinstance(strategic_merge_patch(target, patch, SPEC), dict)
    assert repr((target, patch)) == before
