"""JSON patch: the RFC's examples, what kube-apiserver does beyond them, and sharing."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.kube.errors import TooLarge
from sandpool.kube.patches import MalformedPatch, PatchError, json_patch
from sandpool.kube.sharing import same


@pytest.mark.parametrize(
    ("target", "operations", "expected"),
    [
        # RFC 6902 appendix A
        ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "qux"}], {"baz": "qux", "foo": "bar"}),
        ({"foo": ["bar", "baz"]}, [{"op": "add", "path": "/foo/1", "value": "qux"}], {"foo": ["bar", "qux", "baz"]}),
        ({"baz": "qux", "foo": "bar"}, [{"op": "remove", "path": "/baz"}], {"foo": "bar"}),
        ({"foo": ["bar", "qux", "baz"]}, [{"op": "remove", "path": "/foo/1"}], {"foo": ["bar", "baz"]}),
        ({"baz": "qux"}, [{"op": "replace", "path": "/baz", "value": "boo"}], {"baz": "boo"}),
        (
            {"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}},
            [{"op": "move", "from": "/foo/waldo", "path": "/qux/thud"}],
            {"foo": {"bar": "baz"}, "qux": {"corge": "grault", "thud": "fred"}},
        ),
        (
            {"foo": ["all", "grass", "cows", "eat"]},
            [{"op": "move", "from": "/foo/1", "path": "/foo/3"}],
            {"foo": ["all", "cows", "eat", "grass"]},
        ),
        (
            {"baz": "qux", "foo": ["a", 2, "c"]},
            [{"op": "test", "path": "/baz", "value": "qux"}, {"op": "test", "path": "/foo/1", "value": 2}],
            {"baz": "qux", "foo": ["a", 2, "c"]},
        ),
        (
            {"foo": "bar"},
            [{"op": "add", "path": "/child", "value": {"grandchild": {}}}],
            {"foo": "bar", "child": {"grandchild": {}}},
        ),
        ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "qux", "xyz": 123}], {"foo": "bar", "baz": "qux"}),
        ({"/": 9, "~1": 10}, [{"op": "test", "path": "/~01", "value": 10}], {"/": 9, "~1": 10}),
        ({"foo": ["bar"]}, [{"op": "add", "path": "/foo/-", "value": ["abc"]}], {"foo": ["bar", ["abc"]]}),
        # pointers
        ({"a/b": 1}, [{"op": "replace", "path": "/a~1b", "value": 2}], {"a/b": 2}),
        ({"": 1}, [{"op": "replace", "path": "/", "value": 2}], {"": 2}),
        # beyond the RFC, as kube-apiserver does it
        ({"a": 1}, [{"op": "replace", "path": "/b", "value": 2}], {"a": 1, "b": 2}),
        ({"a": [1, 2, 3]}, [{"op": "remove", "path": "/a/-1"}], {"a": [1, 2]}),
        ({"a": [1, 2]}, [{"op": "add", "path": "/a/-1", "value": 3}], {"a": [1, 2, 3]}),
        ({"a": [1, 2]}, [{"op": "add", "path": "/a/+0", "value": 0}], {"a": [0, 1, 2]}),
        ({"a": 1}, [{"op": "copy", "from": "/b", "path": "/c"}], {"a": 1, "c": None}),
        ({"a": 1}, [{"op": "test", "path": "/b"}], {"a": 1}),
        ({"a": 1}, [{"op": "add", "path": "x/y", "value": 2}], {"a": 1, "y": 2}),
        ({"a": 1}, [{"op": "replace", "path": "", "value": {"b": 2}}], {"b": 2}),
        ({"a": 1}, [{"op": "test", "path": "", "value": {"a": 1}}], {"a": 1}),
        ({"a": 1}, None, {"a": 1}),
    ],
)
def test_json_patch_follows_the_rfc_and_kube_apiserver(target: Any, operations: Any, expected: Any) -> None:
    assert same(json_patch(target, operations), expected)


@pytest.mark.parametrize(
    ("operation", "why"),
    [
        (None, "Unexpected kind: unknown"),
        ({}, "Unexpected kind: unknown"),
        ({"op": "bogus", "path": "/a"}, "Unexpected kind: bogus"),
        ({"op": "add"}, "add operation failed to decode path: missing value"),
        ({"op": "copy", "path": "/a"}, "copy operation failed to decode from: missing value"),
        (
            {"op": "add", "path": "", "value": {}},
            'add operation does not apply: doc is missing path: "": missing value',
        ),
        ({"op": "add", "path": "/x/y"}, 'add operation does not apply: doc is missing path: "/x/y": missing value'),
        ({"op": "add", "path": "/s/y"}, 'add operation does not apply: doc is missing path: "/s/y": missing value'),
        ({"op": "add", "path": "/l/9/y"}, 'add operation does not apply: doc is missing path: "/l/9/y": missing value'),
        (
            {"op": "add", "path": "/l/9"},
            "error in add for path: '/l/9': Unable to access invalid index: 9: invalid index referenced",
        ),
        (
            {"op": "remove", "path": "/x"},
            "error in remove for path: '/x': Unable to remove nonexistent key: x: missing value",
        ),
        (
            {"op": "remove", "path": "/l/x"},
            "error in remove for path: '/l/x': strconv.Atoi: parsing \"x\": invalid syntax",
        ),
        (
            {"op": "remove", "path": "/l/-"},
            "error in remove for path: '/l/-': strconv.Atoi: parsing \"-\": invalid syntax",
        ),
        (
            {"op": "replace", "path": "/l/3"},
            "replace operation does not apply: doc is missing key: /l/3: missing value",
        ),
        ({"op": "replace", "path": "", "value": 3}, "replace operation value must be object or array"),
        ({"op": "test", "path": "/s", "value": "other"}, "testing value /s failed: test failed"),
        ({"op": "test", "path": "/n", "value": True}, "testing value /n failed: test failed"),
        ({"op": "test", "path": "/n", "value": 1.0}, "testing value /n failed: test failed"),
        ({"op": "test", "path": "", "value": {}}, "testing value  failed: test failed"),
        (
            {"op": "move", "from": "/o", "path": "/o/inner"},
            "move operation does not apply: doc is missing destination path: /o/inner: missing value",
        ),
    ],
)
def test_failing_operation_is_reported_with_its_reason(operation: Any, why: str) -> None:
    target = {"s": "text", "n": 1, "l": [1, 2], "o": {"p": 1}}
    with pytest.raises(PatchError) as raised:
        json_patch(target, [operation])
    status = raised.value.status()
    assert str(raised.value) == why
    assert (status["code"], status["reason"]) == (422, "Invalid")
    assert status["message"] == "the server rejected our request due to an error in our request"
    assert status["details"]["causes"][0]["message"] == why
    assert target == {"s": "text", "n": 1, "l": [1, 2], "o": {"p": 1}}


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ({}, "cannot unmarshal object into Go value of type []handlers.jsonPatchOp"),
        ("x", "cannot unmarshal string into Go value of type []handlers.jsonPatchOp"),
        ([3], "cannot unmarshal number into Go value of type handlers.jsonPatchOp"),
        ([{"op": 3}], "cannot unmarshal number into Go struct field jsonPatchOp.op of type string"),
        ([{"op": "add", "path": {}}], "cannot unmarshal object into Go struct field jsonPatchOp.path of type string"),
    ],
)
def test_patch_of_the_wrong_type_is_a_bad_request(patch: Any, message: str) -> None:
    with pytest.raises(MalformedPatch) as raised:
        json_patch({}, patch)
    assert raised.value.code == 400
    assert raised.value.message == f"error decoding patch: json: {message}"


def test_more_than_10000_operations_are_rejected() -> None:
    operations = [{"op": "add", "path": "/a", "value": 1}] * 10_001
    with pytest.raises(TooLarge, match="maximum operations in a JSON patch is 10000, got 10001"):
        json_patch({}, operations)


def test_exponential_copies_are_rejected() -> None:
    """Thirty copies of an object into itself would be a thousand million values."""
    operations = [{"op": "copy", "from": "/a", "path": f"/a/{n}"} for n in range(40)]
    with pytest.raises(PatchError, match="accumulated size increase of copy is"):
        json_patch({"a": {"text": "x" * 100}}, operations)


def test_deep_nesting_is_rejected_without_a_crash() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(MalformedPatch, match="exceeded max depth"):
        json_patch({"a": [deep]}, [{"op": "add", "path": "/a", "value": [[deep]]}])
    with pytest.raises(PatchError, match="exceeded max depth"):
        json_patch({"a": deep}, [{"op": "copy", "from": "/a", "path": "/b"}])


def test_copy_does_not_follow_later_changes_of_its_source() -> None:
    operations: list[dict[str, Any]] = [
        {"op": "add", "path": "/a/x", "value": {}},
        {"op": "copy", "from": "/a", "path": "/b"},
        {"op": "add", "path": "/a/x/y", "value": 1},
        {"op": "add", "path": "/b/x/z", "value": 2},
    ]
    assert json_patch({"a": {}}, operations) == {"a": {"x": {"y": 1}}, "b": {"x": {"z": 2}}}
    assert operations[0]["value"] == {}


def test_unchanged_parts_are_shared() -> None:
    target = {"a": {"b": 1}, "c": {"d": [1, {"e": 2}]}, "f": {}}
    operations: list[dict[str, Any]] = [
        {"op": "replace", "path": "/c/d/1/e", "value": 2},
        {"op": "add", "path": "/f/x", "value": 1},
        {"op": "remove", "path": "/f/x"},
        {"op": "add", "path": "/g", "value": 1},
    ]
    patched = json_patch(target, operations)
    assert patched == {**target, "g": 1}
    assert all(patched[key] is target[key] for key in target)
    assert json_patch(target, operations[:3]) is target


documents = st.recursive(
    st.integers(0, 2) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=8,
)
pointers = st.lists(st.sampled_from(["a", "b", "0", "1", "-", "-1"]), max_size=3).map(
    lambda tokens: "".join("/" + token for token in tokens)
)
steps = st.fixed_dictionaries(
    {
        "op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test"]),
        "path": pointers,
        "from": pointers,
        "value": documents,
    }
)


@given(st.dictionaries(st.sampled_from("ab"), documents), st.lists(steps, max_size=6))
def test_arguments_are_never_modified(target: Any, operations: Any) -> None:
    before = repr((target, operations))
    with contextlib.suppress(PatchError):
        json_patch(target, operations)
    assert repr((target, operations)) == before


def test_repeated_copies_of_a_large_object_are_rejected() -> None:
    large = {"a": {str(number): 1 for number in range(20_000)}}
    operations = [{"op": "copy", "from": "/a/1", "path": f"/a/new{number}"} for number in range(1_000)]
    with pytest.raises(PatchError, match="rewrite too many members"):
        json_patch(large, operations)
