from __future__ import annotations

import json
import time
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.api.kinds import POD
from sandpool.kube.errors import BadRequest, UnsupportedMediaType
from sandpool.kube.transport import APPLY_PATCH, MERGE_PATCH
from sandpool.server.request.body import PROTOBUF, decode, decode_json, decode_patch, decode_yaml, media_type

# Texts with members that may be repeated: an object is a list of pairs.
texts = st.text(alphabet='ab:"\\é', max_size=3)
documents = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.lists(st.tuples(texts, inner), max_size=4).map(tuple),
    max_leaves=12,
)


def written(value: Any, *, ascii_only: bool) -> str:
    if isinstance(value, tuple):
        members = (f"{json.dumps(k, ensure_ascii=ascii_only)} : {written(v, ascii_only=ascii_only)}" for k, v in value)
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(written(item, ascii_only=ascii_only) for item in value) + "]"
    return json.dumps(value, ensure_ascii=ascii_only)


def repeated(value: Any, path: str = "") -> set[str]:
    """The naive algorithm: visit every object that is left after the last of two equal keys has won."""
    found: set[str] = set()
    if isinstance(value, tuple):
        keys = [key for key, _ in value]
        found.update(path + key for key in keys if keys.count(key) > 1)
        for key, member in dict(value).items():
            found |= repeated(member, f"{path}{key}.")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            found |= repeated(item, f"{path[:-1]}[{index}].")
    return found


@given(document=documents, ascii_only=st.booleans())
def test_duplicate_keys_are_found_exactly(document: Any, ascii_only: bool) -> None:
    text = written(document, ascii_only=ascii_only)
    body = decode_json(text.encode())
    assert body.value == json.loads(text)
    assert set(body.duplicates) == repeated(document)


def test_escaped_colon_hides_no_duplicate() -> None:
    assert decode_json(rb'{"a":"\u003a","a":1}').duplicates == ("a",)
    assert decode_json(rb'{"a":"\u003A\u003a"}').duplicates == ()


def test_one_duplicate_among_many_members_is_found_quickly() -> None:
    members = ",".join(f'"k{index}":{index}' for index in range(50_000))
    begun = time.process_time()
    assert decode_json(f'{{"k0":0,{members}}}'.encode()).duplicates == ("k0",)
    assert time.process_time() - begun < 1.0


@pytest.mark.parametrize("data", [b"", b"  \n", b"{", b'{"a":NaN}', b'{"a":1}x', b'"\xff"', b'"\\ud800"', b"{'a':1}"])
def test_malformed_json_is_a_bad_request(data: bytes) -> None:
    with pytest.raises(BadRequest, match="json parse error"):
        decode_json(data)


def test_endless_nesting_is_a_bad_request() -> None:
    with pytest.raises(BadRequest):
        decode_json(b'{"a":' * 100_000)


@pytest.mark.parametrize("content_type", ["", "application/json", "APPLICATION/JSON; charset=utf-8", "*/*"])
def test_json_media_types_are_accepted(content_type: str) -> None:
    assert decode(b'{"a":1}', content_type).value == {"a": 1}


@pytest.mark.parametrize("content_type", ["application/yaml", "application/x-yaml", "text/yaml"])
def test_yaml_media_types_are_accepted(content_type: str) -> None:
    assert decode(b"a: 1", content_type).value == {"a": 1}


def test_other_media_types_are_unsupported() -> None:
    with pytest.raises(UnsupportedMediaType, match=f"application/json, application/yaml, {PROTOBUF}"):
        decode(b"x", "text/plain")


def test_media_types_are_compared_without_parameters() -> None:
    assert media_type(" Application/JSON ; charset=utf-8") == "application/json"


@pytest.mark.parametrize(
    "data, why",
    [
        (b"[]", "cannot unmarshal into an object"),
        (b'{"kind":1}', "kind and apiVersion must be strings"),
        (b'{"apiVersion":"a/b/c"}', "unexpected GroupVersion string: a/b/c"),
    ],
)
def test_kind_and_version_must_be_strings(data: bytes, why: str) -> None:
    with pytest.raises(BadRequest, match=why) as caught:
        decode(data, "", POD)
    assert caught.value.message.startswith("the object provided is unrecognized (must be of type Pod): ")


def test_null_is_an_empty_object() -> None:
    assert decode(b"null", "").value == {}


def test_malformed_protobuf_is_a_bad_request() -> None:
    with pytest.raises(BadRequest, match="could not be decoded as protobuf"):
        decode(b"k8s\0\xff", PROTOBUF, POD)


def test_apply_patch_is_yaml_and_other_patches_are_json() -> None:
    assert decode_patch(b"a: {b: 1}", APPLY_PATCH).value == {"a": {"b": 1}}
    assert decode_patch(b'  {"a": 1}', APPLY_PATCH).value == {"a": 1}
    with pytest.raises(BadRequest):
        decode_patch(b"a: 1", MERGE_PATCH)


# YAML -----------------------------------------------------------------------------------------------------------------


def test_yaml_is_read_as_json_values() -> None:
    text = b"{when: 2026-01-02T03:04:05Z, day: 2026-01-02, 2: two, yes: no, text: '1', none: ~, list: [1, 2.5]}"
    assert decode_yaml(text).value == {
        "when": "2026-01-02T03:04:05Z",
        "day": "2026-01-02",
        "2": "two",
        "true": False,
        "text": "1",
        "none": None,
        "list": [1, 2.5],
    }


def test_duplicate_keys_in_yaml_are_found() -> None:
    body = decode_yaml(b"a: 1\nb: {c: 1, c: 2}\na: 3")
    assert body.value == {"a": 3, "b": {"c": 2}}
    assert set(body.duplicates) == {"a", "c"}


def test_yaml_merge_keys_are_expanded() -> None:
    assert decode_yaml(b"a: &a {k: 1}\nb: {<<: *a, l: 2}").value == {"a": {"k": 1}, "b": {"k": 1, "l": 2}}


def bomb(form: str) -> bytes:
    """A billion nodes in a few hundred bytes, each line standing for ten of the line before."""
    lines = ["a0: &a0 {k: v}"]
    for level in range(1, 10):
        ten = ",".join([f"*a{level - 1}"] * 10)
        lines.append(f"a{level}: &a{level} " + form.format(ten))
    return "\n".join(lines).encode()


def alias_bomb(text: bytes) -> bytes:
    """36 KB that stand for 30 GB: a long text, and a million aliases of it."""
    thousand = b"[" + b"*a," * 1_000 + b"]"
    return b"a: &a " + text + b"\nb: &b " + thousand + b"\nc: [" + b"*b," * 900 + b"]"


def key_bomb() -> bytes:
    """32 KB that stand for 15 MB of keys. A key of this length needs a question mark; the few aliases are few nodes."""
    return b"a: &a {? " + b"k" * 30_000 + b" : 1}\nb: [" + b"*a," * 500 + b"]"


def merge_bomb() -> bytes:
    """36 KB with merge keys that copy a million members."""
    members = b",".join(b"k%d: 1" % number for number in range(2_000))
    return b"a: &a {" + members + b"}\nb: [" + b"{<<: *a}," * 500 + b"]"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(bomb("[{}]"), id="aliases"),
        pytest.param(bomb("{{<<: [{}]}}"), id="merge keys"),
        pytest.param(alias_bomb(b"x" * 30_000), id="aliases of one long string"),
        pytest.param(key_bomb(), id="aliases of one long key"),
        pytest.param(alias_bomb("\u00e9".encode() * 15_000), id="aliases of a long string that is not ASCII"),
        pytest.param(b"a: &a [" + b"1," * 12_000 + b"]\nb: [" + b"*a," * 3_000 + b"]", id="aliases of one long list"),
        pytest.param(merge_bomb(), id="merges of one large mapping"),
    ],
)
def test_what_aliases_expand_to_is_bounded(data: bytes) -> None:
    begun = time.process_time()
    with pytest.raises(BadRequest, match="excessive aliasing"):
        decode_yaml(data)
    assert time.process_time() - begun < 2.0


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"&a [*a]", id="a list in itself"),
        pytest.param(b"&a {<<: *a}", id="a mapping merged into itself"),
        pytest.param(b"[" * 1_000_000, id="flow nesting, which once ended the process"),
        pytest.param(b"- " * 100_000, id="block nesting"),
        pytest.param(b"{a: " * 300 + b"}" * 300, id="more nesting than can be encoded"),
    ],
)
def test_yaml_bombs_are_rejected_early(data: bytes) -> None:
    begun = time.process_time()
    with pytest.raises(BadRequest):
        decode_yaml(data)
    assert time.process_time() - begun < 2.0


def test_aliases_that_expand_to_less_than_a_body_are_decoded() -> None:
    value = decode_yaml(b"a: &a " + b"x" * 1_000 + b"\nb: [" + b"*a," * 3_000 + b"]").value
    assert value["b"] == ["x" * 1_000] * 3_000


def test_long_paths_of_duplicate_keys_are_not_all_listed() -> None:
    """75,000 duplicates below a key of 1.5 MB would be 110 GB of paths."""
    pairs = b",".join(b'"%d":1,"%d":2' % (number, number) for number in range(75_000))
    body = decode_json(b'{"%s":{%s}}' % (b"x" * 1_500_000, pairs))
    assert body.duplicates == ()
    assert len(decode_json(b'{"x":{%s}}' % pairs).duplicates) == 100
    assert len(decode_yaml(b"{x: {" + b"a: 1," * 2_000 + b"}}").duplicates) == 100


def test_moderate_nesting_is_decoded() -> None:
    value = decode_yaml(b"[" * 250 + b"]" * 250).value
    assert orjson.dumps(value) == b"[" * 250 + b"]" * 250


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"~",
        b"a: b: c",
        b"a: *missing",
        b"--- 1\n--- 2",
        b"a: \xff",
        b"? [a]\n: b",
        b"a: !!timestamp x",
        b"a: !!bool x",
        b"a: !!int ''",
        b"a: !!float ''",
        b"a: !!binary AA==",
        b"a: !!set {b}",
        b"!!python/object/apply:os.system [ls]",
        b"a: " + b"9" * 5000,
        b"a: 99999999999999999999",
    ],
)
def test_yaml_without_a_json_form_is_a_bad_request(data: bytes) -> None:
    with pytest.raises(BadRequest):
        decode_yaml(data)


@pytest.mark.parametrize("text", [b"a: &a [*a, *a]", b"a: &a {b: {c: *a}}", b"&a [[[*a]]]"])
def test_anchor_that_contains_itself_is_rejected_before_it_is_walked(
    text: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandpool.server.request.body._check_expanded_size", None)
    with pytest.raises(BadRequest, match="an anchor contains itself"):
        decode_yaml(text)


def test_alias_after_the_end_of_its_anchor_is_allowed() -> None:
    assert decode_yaml(b"a: &a [1]\nb: [*a, [*a]]").value == {"a": [1], "b": [[1], [[1]]]}
