"""Admission by schema: accepted objects, and the errors of others. The expected words come from kube-apiserver 1.36."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandpool.api import kinds
from sandpool.api.resource import Object
from sandpool.api.schema.admit import (
    Admission,
    Admitted,
    Undecodable,
    compile_admission,
    compile_defaults,
)
from sandpool.api.schema.core import shape_of
from sandpool.api.schema.shape import from_openapi

SPEC: dict[str, Any] = {
    "n": {"type": "integer", "format": "int32", "minimum": 0, "maximum": 10},
    "x": {"type": "integer", "minimum": 0, "exclusiveMinimum": True, "multipleOf": 2},
    "f": {"type": "number", "minimum": 0.5},
    "s": {"type": "string", "minLength": 2, "maxLength": 4, "pattern": "^a"},
    "t": {"type": "string", "format": "date-time"},
    "e": {"type": "string", "enum": ["A", "B"]},
    "ei": {"type": "integer", "enum": [1, 2]},
    "b": {"type": "boolean"},
    "l": {"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "string"}},
    "unique": {"type": "array", "uniqueItems": True, "items": {"type": "integer"}},
    "u": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
    "m": {
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["k"],
        "items": {
            "type": "object",
            "required": ["k"],
            "properties": {"k": {"type": "string"}, "d": {"type": "string", "default": "x"}},
        },
    },
    "m2": {
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["k", "p"],
        "items": {
            "type": "object",
            "properties": {"k": {"type": "string"}, "p": {"type": "string", "default": "x"}},
        },
    },
    "mp": {"type": "object", "maxProperties": 2, "minProperties": 1, "additionalProperties": {"type": "string"}},
    "at": {"type": "object", "additionalProperties": True},
    "sets": {
        "type": "object",
        "additionalProperties": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
    },
    "any": {"x-kubernetes-preserve-unknown-fields": True},
    "ios": {"x-kubernetes-int-or-string": True},
    "ios2": {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True},
    "nul": {"type": "string", "nullable": True},
    "def": {"type": "string", "default": "D"},
    "emb": {"type": "object", "x-kubernetes-embedded-resource": True, "x-kubernetes-preserve-unknown-fields": True},
    "embp": {"type": "object", "x-kubernetes-embedded-resource": True, "properties": {"spec": {"type": "object"}}},
    "ao": {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
        "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
    },
    "no": {"type": "string", "not": {"enum": ["x"]}},
    "al": {"type": "string", "allOf": [{"minLength": 3}, {"pattern": "^z"}]},
    "an": {"type": "string", "anyOf": [{"minLength": 3}, {"pattern": "^z"}]},
    "o": {"type": "object", "properties": {"x": {"type": "string"}, "i": {"type": "integer"}}},
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 5}}},
        "spec": {"type": "object", "required": ["need"], "properties": {"need": {"type": "string"}, **SPEC}},
        "status": {"type": "object", "properties": {"s": {"type": "string"}}},
    },
}
SHAPE = from_openapi(SCHEMA)
admit = compile_admission(SHAPE)


def probe(**spec: Any) -> Object:
    return {
        "apiVersion": "t.example.com/v1",
        "kind": "Probe",
        "metadata": {"name": "p"},
        "spec": {"need": "x", "def": "D", **spec},
    }


def complaints(admitted: Admitted) -> list[str]:
    return [str(cause) for cause in admitted.causes]


def wrong_type(field: str, value: str, wanted: str) -> str:
    return f'{field}: Invalid value: "{value}": {field} in body must be of type {wanted}: "{value}"'


CHECKED = '<nil>: Invalid value: "": Checked value must be of type integer '


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"n": "x"}, [wrong_type("spec.n", "string", "integer")]),
        ({"n": -1}, ["spec.n: Invalid value: -1: spec.n in body should be greater than or equal to 0"]),
        ({"n": 11}, ["spec.n: Invalid value: 11: spec.n in body should be less than or equal to 10"]),
        ({"n": 1.5}, [wrong_type("spec.n", "float64", "int32"), CHECKED + "with format int32 in spec.n"]),
        (
            {"n": 99999999999},
            [
                CHECKED + "with format int32 in spec.n",
                "spec.n: Invalid value: 99999999999: spec.n in body should be less than or equal to 10",
            ],
        ),
        (
            {"n": 2**70},
            [
                wrong_type("spec.n", "float64", "int32"),
                CHECKED + "with format int32 in spec.n",
                "spec.n: Invalid value: 1.1805916207174113e+21: spec.n in body should be less than or equal to 10",
            ],
        ),
        ({"n": True}, [wrong_type("spec.n", "", "int32")]),
        ({"x": 0}, ["spec.x: Invalid value: 0: spec.x in body should be greater than 0"]),
        ({"x": 3}, ["spec.x: Invalid value: 3: spec.x in body should be a multiple of 2"]),
        ({"f": 0.25}, ["spec.f: Invalid value: 0.25: spec.f in body should be greater than or equal to 0.5"]),
        ({"f": "x"}, [wrong_type("spec.f", "string", "number")]),
        ({"s": "a"}, ['spec.s: Invalid value: "a": spec.s in body should be at least 2 chars long']),
        ({"s": "abcde"}, ["spec.s: Too long: may not be more than 4 bytes"]),
        ({"s": "bc"}, ["spec.s: Invalid value: \"bc\": spec.s in body should match '^a'"]),
        ({"s": 1}, [wrong_type("spec.s", "integer", "string")]),
        ({"s": ["x"]}, [wrong_type("spec.s", "array", "string")]),
        ({"s": {"a": 1}}, [wrong_type("spec.s", "object", "string")]),
        ({"t": "tomorrow"}, [wrong_type("spec.t", "tomorrow", "date-time")]),
        ({"t": 1}, [wrong_type("spec.t", "int64", "date-time")]),
        # kube-apiserver accepts a list for a string with a format, which is of no use.
        ({"t": [1]}, [wrong_type("spec.t", "array", "string")]),
        ({"e": "C"}, ['spec.e: Unsupported value: "C": supported values: "A", "B"']),
        (
            {"e": 1},
            [wrong_type("spec.e", "integer", "string"), 'spec.e: Unsupported value: 1: supported values: "A", "B"'],
        ),
        ({"ei": 3}, ['spec.ei: Unsupported value: 3: supported values: "1", "2"']),
        ({"b": "true"}, [wrong_type("spec.b", "string", "boolean")]),
        ({"b": 1}, [wrong_type("spec.b", "integer", "boolean")]),
        ({"l": []}, ["spec.l: Invalid value: 0: spec.l in body should have at least 1 items"]),
        ({"l": ["a", "b", "c"]}, ["spec.l: Too many: 3: must have at most 2 items"]),
        ({"l": [1]}, [wrong_type("spec.l[0]", "integer", "string")]),
        ({"l": [None]}, [wrong_type("spec.l[0]", "null", "string")]),
        ({"unique": [1, 1]}, ['spec.unique: Invalid value: "": spec.unique in body shouldn\'t contain duplicates']),
        ({"u": ["a", "b", "a", "a"]}, ['spec.u[2]: Duplicate value: "a"']),
        ({"sets": {"k": ["a", "a"]}}, ['spec.sets[k][1]: Duplicate value: "a"']),
        ({"m": [{"k": "a"}, {"k": "a"}]}, ['spec.m[1]: Duplicate value: {"k":"a"}']),
        ({"m": [{"k": "a"}, None]}, [wrong_type("spec.m[1]", "null", "object")]),
        (
            {"m": ["a"]},
            [
                wrong_type("spec.m[0]", "string", "object"),
                'spec.m[0]: Invalid value: "a": must be an object for an array of list-type map',
            ],
        ),
        (
            {"m": [{"d": "a"}, {"d": "b"}]},
            ["spec.m[0].k: Required value", "spec.m[1].k: Required value", "spec.m[1]: Duplicate value: {}"],
        ),
        ({"m2": [{"k": "a"}, {"k": "a"}]}, ['spec.m2[1]: Duplicate value: {"k":"a","p":"x"}']),
        ({"mp": {}}, ["spec.mp: Invalid value: 0: spec.mp in body should have at least 1 properties"]),
        ({"mp": {"a": "x", "b": "y", "c": "z"}}, ["spec.mp: Too many: 3: must have at most 2 items"]),
        ({"mp": {"a": 1}}, [wrong_type("spec.mp.a", "integer", "string")]),
        ({"mp": {"a": None}}, ["spec.mp: Invalid value: 0: spec.mp in body should have at least 1 properties"]),
        ({"ios": True}, [wrong_type("spec.ios", "boolean", "integer,string")]),
        ({"ios": 1.5}, [wrong_type("spec.ios", "number", "integer,string")]),
        (
            {"ios2": True},
            [
                wrong_type("spec.ios2", "boolean", "integer,string"),
                '<nil>: Invalid value: "": "spec.ios2" must validate at least one schema (anyOf)',
                wrong_type("spec.ios2", "boolean", "integer"),
            ],
        ),
        (
            {"ios2": 1.5},
            [
                wrong_type("spec.ios2", "number", "integer,string"),
                '<nil>: Invalid value: "": "spec.ios2" must validate at least one schema (anyOf)',
                wrong_type("spec.ios2", "number", "integer"),
                CHECKED + "(default format) in spec.ios2",
            ],
        ),
        ({"need": None}, ["spec.need: Required value"]),
        ({"emb": {}}, ["spec.emb.apiVersion: Required value", "spec.emb.kind: Required value"]),
        (
            {"ao": {}},
            [
                '<nil>: Invalid value: "": "spec.ao" must validate one and only one schema (oneOf). Found none valid',
                "spec.ao.a: Required value",
            ],
        ),
        (
            {"ao": {"a": "1", "b": "2"}},
            [
                '<nil>: Invalid value: "": "spec.ao" must validate one and only one schema (oneOf). '
                "Found 2 valid alternatives"
            ],
        ),
        ({"no": "x"}, ['<nil>: Invalid value: "": "spec.no" must not validate the schema (not)']),
        (
            {"al": "a"},
            [
                'spec.al: Invalid value: "a": spec.al in body should be at least 3 chars long',
                "spec.al: Invalid value: \"a\": spec.al in body should match '^z'",
                '<nil>: Invalid value: "": "spec.al" must validate all the schemas (allOf). None validated',
            ],
        ),
        (
            {"an": "a"},
            [
                '<nil>: Invalid value: "": "spec.an" must validate at least one schema (anyOf)',
                'spec.an: Invalid value: "a": spec.an in body should be at least 3 chars long',
            ],
        ),
        ({"o": "x"}, [wrong_type("spec.o", "string", "object")]),
    ],
    ids=str,
)
def test_validation_errors_have_the_words_of_kube_apiserver(spec: dict[str, Any], expected: list[str]) -> None:
    assert complaints(admit(probe(**spec))) == expected


def test_wrong_types_have_their_own_reason() -> None:
    assert [cause.reason for cause in admit(probe(n="x")).causes] == ["FieldValueTypeInvalid"]


@pytest.mark.parametrize("spec", [5, [], "x"])
def test_spec_that_is_no_object_is_rejected(spec: Any) -> None:
    found = complaints(admit({**probe(), "spec": spec}))
    assert len(found) == 1
    assert found[0].startswith('spec: Invalid value: "')


@pytest.mark.parametrize(
    ("spec", "stored", "unknown"),
    [
        ({"n": 1.0}, {"n": 1}, []),
        ({"ei": 1.0}, {"ei": 1}, []),
        ({"ios": 1.0}, {"ios": 1}, []),
        ({"f": 0}, {"f": 0}, []),
        ({"l": None}, {}, []),
        ({"any": None}, {}, []),
        ({"nul": None}, {"nul": None}, []),
        ({"def": None}, {"def": "D"}, []),
        ({"any": {"a": None, "b": [{"c": None}]}}, {"any": {"a": None, "b": [{"c": None}]}}, []),
        ({"at": {"a": 1, "b": {"c": 1}}}, {"at": {"a": 1, "b": {}}}, ["spec.at.b.c"]),
        ({"m": [{"k": "a", "q": 1}]}, {"m": [{"k": "a", "d": "x"}]}, ["spec.m[0].q"]),
        ({"zz": 1, "o": {"y": 1}}, {"o": {}}, ["spec.o.y", "spec.zz"]),
        (
            {"emb": {"apiVersion": "v1", "kind": "X", "metadata": {"name": "a", "foo": 1, "labels": {}}, "z": 1}},
            {"emb": {"apiVersion": "v1", "kind": "X", "metadata": {"name": "a"}, "z": 1}},
            ["spec.emb.metadata.foo"],
        ),
        (
            {"embp": {"apiVersion": "v1", "kind": "X", "metadata": {"name": "BAD_"}, "z": 1}},
            {"embp": {"apiVersion": "v1", "kind": "X", "metadata": {"name": "BAD_"}}},
            ["spec.embp.z"],
        ),
    ],
    ids=str,
)
def test_admitted_spec_is_pruned_and_defaulted(
    spec: dict[str, Any], stored: dict[str, Any], unknown: list[str]
) -> None:
    admitted = admit(probe(**spec))
    assert complaints(admitted) == []
    assert admitted.object["spec"] == {"need": "x", "def": "D", **stored}
    assert orjson.dumps(admitted.object["spec"]).count(b".0") == 0
    assert admitted.unknown == unknown


def test_defaults_are_filled_in_and_shared() -> None:
    bare = {**probe(), "spec": {"need": "x", "m": [{"k": "a"}]}}
    admitted = admit(bare)
    assert admitted.object["spec"] == {"need": "x", "m": [{"k": "a", "d": "x"}], "def": "D"}
    assert "def" not in bare["spec"], "the object that was given is never changed"


def test_metadata_are_decoded_like_those_of_built_in_kinds() -> None:
    admitted = admit(
        {**probe(), "metadata": {"name": "p", "foo": 1, "labels": {}, "annotations": {"a": None}}, "extra": 1}
    )
    assert admitted.object["metadata"] == {"name": "p", "annotations": {"a": ""}}
    assert admitted.unknown == ["extra", "metadata.foo"]


def test_schema_can_restrict_metadata() -> None:
    assert complaints(admit({**probe(), "metadata": {"name": "longer"}})) == [
        "metadata.name: Too long: may not be more than 5 bytes"
    ]


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"labels": {"a": 1}}, "json: cannot unmarshal number into Go struct field ObjectMeta.labels of type string"),
        (
            {"labels": []},
            "json: cannot unmarshal array into Go struct field ObjectMeta.labels of type map[string]string",
        ),
        (5, "json: cannot unmarshal number into Go value of type v1.ObjectMeta"),
        ({"creationTimestamp": "x"}, 'parsing time "x" as "2006-01-02T15:04:05Z07:00": cannot parse "x" as "2006"'),
        (
            {"generation": "x"},
            "json: cannot unmarshal string into Go struct field ObjectMeta.generation of type int64",
        ),
    ],
    ids=str,
)
def test_undecodable_metadata_are_a_bad_request(metadata: Any, message: str) -> None:
    with pytest.raises(Undecodable) as raised:
        admit({**probe(), "metadata": metadata})
    assert str(raised.value) == message


def test_embedded_resource_must_be_decodable() -> None:
    with pytest.raises(Undecodable) as raised:
        admit(probe(emb={"apiVersion": 1, "kind": "X"}))
    assert str(raised.value) == "spec.emb.apiVersion: Invalid value: 1: must be a string"


# --- copy-on-write and the identity skip --------------------------------------------------------------------------


FULL = probe(n=1, s="ab", m=[{"k": "a", "d": "1"}, {"k": "b", "d": "2"}], mp={"a": "b"}, any={"x": [1, None]}, u=["a"])


def test_unchanged_object_is_returned_as_is() -> None:
    assert admit(FULL).object is FULL


def test_only_changed_parts_are_copied() -> None:
    given = {**FULL, "spec": {**FULL["spec"], "zz": 1}}
    admitted = admit(given).object
    assert admitted["metadata"] is given["metadata"]
    assert admitted["spec"]["m"] is FULL["spec"]["m"]
    assert "zz" in given["spec"]


def test_unchanged_values_are_not_validated_again() -> None:
    # A value that could not be admitted now: it is skipped because it is the stored one itself.
    stored = {**FULL, "spec": {"need": "x", "n": 99, "def": "D"}}
    changed = {**stored, "metadata": {"name": "p", "labels": {"a": "b"}}}
    assert admit(changed, stored).object is changed
    assert admit(changed, stored).causes == []
    assert complaints(admit(changed)) != []


def test_moved_list_items_are_not_validated_again() -> None:
    bad = {"k": 1}
    stored = {**FULL, "spec": {"need": "x", "def": "D", "m": [bad]}}
    moved = {**stored, "spec": {**stored["spec"], "m": [{"k": "a", "d": "x"}, bad]}}
    assert complaints(admit(moved, stored)) == []


def test_equal_values_are_accepted_under_a_stricter_schema() -> None:
    stored = probe(n=99, m=[{"k": 1, "d": "x"}, {"k": "b", "d": "x"}])
    again = orjson.loads(orjson.dumps(stored))
    again["spec"]["m"].reverse()
    again["spec"]["s"] = "toolong"
    assert complaints(admit(again, stored)) == ["spec.s: Too long: may not be more than 4 bytes"]


def test_existing_duplicates_are_accepted() -> None:
    stored = probe(u=["a", "a"])
    assert complaints(admit(probe(u=["a", "a", "b"]), stored)) == []
    assert complaints(admit(probe(u=["b", "b"]), probe(u=["b"]))) == ['spec.u[1]: Duplicate value: "b"']


# --- properties ---------------------------------------------------------------------------------------------------


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([*SPEC, "k", "d", "a", "x", "apiVersion", "kind", "metadata"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from([*SPEC, "zz"]), json_values, max_size=5), json_values)
def test_admission_of_any_json_is_idempotent(spec: dict[str, Any], status: Any) -> None:
    try:
        first = admit({**probe(**spec), "status": status})
    except Undecodable:
        return
    second = admit(first.object)
    assert second.object is first.object
    assert second.unknown == []
    assert second.causes == first.causes
    against_itself = admit(first.object, first.object)
    assert against_itself.object is first.object
    assert against_itself.causes == []


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from([*SPEC, "zz"]), json_values, max_size=3), json_values, json_values)
def test_object_with_an_admitted_spec_is_admitted_like_the_first(spec: dict[str, Any], one: Any, other: Any) -> None:
    """An admission that has seen the spec in another object answers like one that has not."""
    used = compile_admission(SHAPE)
    admission_of(used, {**probe(**spec), "status": one})
    copy = {**probe(**deepcopy(spec)), "status": other}

    assert repr(admission_of(used, copy)) == repr(admission_of(compile_admission(SHAPE), copy))


def admission_of(admit: Admission, obj: Object) -> Admitted | str:
    try:
        return admit(obj)
    except Undecodable as error:
        return str(error)


def test_objects_with_equal_specs_share_the_admitted_one() -> None:
    first = admit(probe(m=[{"k": "shared"}])).object
    second = admit(probe(m=[{"k": "shared"}])).object
    assert second["spec"] is first["spec"]
    assert first["spec"]["m"] == [{"k": "shared", "d": "x"}]


def test_admitted_specs_distinguish_numbers_that_python_calls_equal() -> None:
    assert complaints(admit(probe(n=1))) == []
    assert complaints(admit(probe(n=True))) != []
    assert type(admit(probe(f=1)).object["spec"]["f"]) is int
    assert type(admit(probe(f=1.0)).object["spec"]["f"]) is float


def deep(levels: int) -> Any:
    value: Any = {"type": "object"}
    for _ in range(levels):
        value = {"type": "object", "properties": {"a": value}}
    return value


def test_endless_nesting_is_a_bad_request() -> None:
    crd = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "x"}}
    versions = [{"name": "v1", "schema": {"openAPIV3Schema": deep(5000)}}]
    with pytest.raises(Undecodable, match="exceeded max depth"):
        compile_admission(shape_of(kinds.CUSTOM_RESOURCE_DEFINITION))({**crd, "spec": {"versions": versions}})


def test_nesting_is_unlimited_in_preserved_fields() -> None:
    deeply = probe(any=deep(5000))
    assert admit(deeply).object is deeply


def test_defaulting_changes_nothing_else() -> None:
    fill = compile_defaults(SHAPE)
    assert fill(FULL) is FULL
    bare = {"spec": {"zz": None, "m": [{"k": "a"}, {"k": "b", "d": "2"}]}, "other": 1}
    filled = fill(bare)
    assert filled == {"spec": {"zz": None, "m": [{"k": "a", "d": "x"}, {"k": "b", "d": "2"}], "def": "D"}, "other": 1}
    assert filled["spec"]["m"][1] is bare["spec"]["m"][1]  # type: ignore[index]
