"""Structural schemas of custom kinds: validation, defaults, pruning, and what is left alone."""

from __future__ import annotations

import pytest
import pytest_asyncio

from sandpool.api.kinds import CUSTOM_RESOURCE_DEFINITION
from sandpool.api.resource import Object, ResourceType
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import BadRequest, Invalid, TooManyRequests
from sandpool.testing.objects import new
from sandpool.testing.waiting import until
from tests.support.api_objects import custom_type, definition
from tests.support.custom_kinds import Provide, install

STRING: Object = {"type": "string"}
INTEGER: Object = {"type": "integer"}
PROPERTIES: Object = {
    "must": STRING,
    "enum": {**STRING, "enum": ["A", "B"]},
    "pattern": {**STRING, "pattern": "^a+$"},
    "length": {**STRING, "minLength": 2, "maxLength": 4},
    "number": {"type": "number"},
    "range": {**INTEGER, "minimum": 1, "maximum": 10},
    "above": {**INTEGER, "minimum": 1, "exclusiveMinimum": True},
    "multiple": {**INTEGER, "multipleOf": 5},
    "boolean": {"type": "boolean"},
    "list": {"type": "array", "items": INTEGER, "minItems": 1, "maxItems": 3},
    "set": {"type": "array", "items": STRING, "x-kubernetes-list-type": "set"},
    "byName": {
        "type": "array",
        "items": {
            "type": "object",
            "required": ["name"],
            "properties": {"name": STRING, "value": {**STRING, "default": "v"}},
        },
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
    },
    "map": {"type": "object", "additionalProperties": INTEGER, "maxProperties": 2},
    "intOrString": {"x-kubernetes-int-or-string": True},
    "nullable": {**STRING, "nullable": True},
    "date": {**STRING, "format": "date-time"},
    "int32": {**INTEGER, "format": "int32"},
    "free": {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
        "properties": {"known": {"type": "object", "properties": {"a": STRING}}},
    },
    "embedded": {
        "type": "object",
        "x-kubernetes-embedded-resource": True,
        "x-kubernetes-preserve-unknown-fields": True,
    },
    "defaulted": {**STRING, "default": "d"},
    "object": {
        "type": "object",
        "default": {},
        "properties": {
            "a": {**INTEGER, "default": 1},
            "b": {"type": "object", "properties": {"c": {**INTEGER, "default": 2}}},
        },
    },
    "oneOf": {
        "type": "object",
        "properties": {"x": INTEGER, "y": INTEGER},
        "oneOf": [{"required": ["x"]}, {"required": ["y"]}],
    },
    "immutable": {**STRING, "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "it is immutable"}]},
}
SCHEMA: Object = {
    "type": "object",
    "required": ["spec"],
    "properties": {"spec": {"type": "object", "required": ["must"], "properties": PROPERTIES}},
}
DEFAULTS: Object = {"must": "m", "defaulted": "d", "object": {"a": 1}}


@pytest_asyncio.fixture(loop_scope="session")
async def checked(provide: Provide) -> ResourceType:
    """A custom kind with one field for everything a schema can say."""
    type = custom_type("schemas.example.com", "Checked")
    await provide(definition(type, SCHEMA))
    return type


TYPE = "FieldValueTypeInvalid"
INVALID = "FieldValueInvalid"


@pytest.mark.parametrize(
    ("spec", "field", "reason", "message"),
    [
        ({"enum": "C"}, "enum", "FieldValueNotSupported", 'Unsupported value: "C": supported values: "A", "B"'),
        ({"pattern": "b"}, "pattern", INVALID, """Invalid value: "b": spec.pattern in body should match '^a+$'"""),
        ({"length": "a"}, "length", INVALID, 'Invalid value: "a": spec.length in body should be at least 2 chars long'),
        ({"length": "abcde"}, "length", "FieldValueTooLong", "Too long: may not be more than 4 bytes"),
        ({"range": 0}, "range", INVALID, "Invalid value: 0: spec.range in body should be greater than or equal to 1"),
        ({"range": 11}, "range", INVALID, "Invalid value: 11: spec.range in body should be less than or equal to 10"),
        ({"above": 1}, "above", INVALID, "Invalid value: 1: spec.above in body should be greater than 1"),
        ({"multiple": 6}, "multiple", INVALID, "Invalid value: 6: spec.multiple in body should be a multiple of 5"),
        ({"list": []}, "list", INVALID, "Invalid value: 0: spec.list in body should have at least 1 items"),
        ({"list": [1, 2, 3, 4]}, "list", "FieldValueTooMany", "Too many: 4: must have at most 3 items"),
        ({"set": ["a", "b", "a"]}, "set[2]", "FieldValueDuplicate", 'Duplicate value: "a"'),
        ({"byName": [{"name": "a"}] * 2}, "byName[1]", "FieldValueDuplicate", 'Duplicate value: {"name":"a"}'),
        ({"byName": [{"value": "v"}]}, "byName[0].name", "FieldValueRequired", "Required value"),
        ({"map": {"a": 1, "b": 2, "c": 3}}, "map", "FieldValueTooMany", "Too many: 3: must have at most 2 items"),
        ({"date": "x"}, "date", TYPE, 'Invalid value: "x": spec.date in body must be of type date-time: "x"'),
        ({"embedded": {"x": 1}}, "embedded.kind", "FieldValueRequired", "Required value"),
        ({"must": None}, "must", "FieldValueRequired", "Required value"),
    ],
    ids=lambda value: repr(value) if isinstance(value, dict) else "",
)  # fmt: skip
async def test_values_outside_the_schema_are_rejected(
    client: Client, namespace: str, checked: ResourceType, spec: Object, field: str, reason: str, message: str
) -> None:
    with pytest.raises(Invalid) as refused:
        await client.create(checked, new(checked, "a", spec={"must": "m", **spec}), namespace)
    assert {"field": f"spec.{field}", "reason": reason, "message": message} in refused.value.details["causes"]
    assert f"spec.{field}: {message}" in refused.value.message
    assert refused.value.message.startswith('Checked.schemas.example.com "a" is invalid: ')
    assert (refused.value.details["group"], refused.value.details["kind"]) == ("schemas.example.com", "Checked")


@pytest.mark.parametrize(
    ("spec", "field", "given", "wanted"),
    [
        ({"number": "x"}, "number", "string", "number"),
        ({"range": 1.5}, "range", "number", "integer"),
        ({"boolean": "true"}, "boolean", "string", "boolean"),
        ({"list": ["x"]}, "list[0]", "string", "integer"),
        ({"list": "x"}, "list", "string", "array"),
        ({"map": {"a": "x"}}, "map.a", "string", "integer"),
        ({"intOrString": 1.5}, "intOrString", "number", "integer,string"),
        ({"must": 5}, "must", "integer", "string"),
        ({"object": "x"}, "object", "string", "object"),
    ],
)
async def test_values_of_the_wrong_type_are_rejected(
    client: Client, namespace: str, checked: ResourceType, spec: Object, field: str, given: str, wanted: str
) -> None:
    with pytest.raises(Invalid) as refused:
        await client.create(checked, new(checked, "a", spec={"must": "m", **spec}), namespace)
    assert refused.value.details["causes"][0] == {
        "field": f"spec.{field}",
        "reason": "FieldValueTypeInvalid",
        "message": f'Invalid value: "{given}": spec.{field} in body must be of type {wanted}: "{given}"',
    }


@pytest.mark.parametrize(
    "spec",
    [
        {"enum": "A", "pattern": "aa", "length": "abc", "number": 1.5, "range": 10, "above": 2, "multiple": 10},
        {"boolean": False, "list": [1, 2, 3], "set": ["a", "b"], "map": {"a": 1}},
        {"intOrString": 5},
        {"intOrString": "5%"},
        {"nullable": None},
        {"nullable": "x"},
        {"date": "2020-01-01T00:00:00Z"},
        {"oneOf": {"x": 1}},
        {"free": {"anything": [1, {"b": None}]}},
    ],
)
async def test_valid_values_are_stored_unchanged(
    client: Client, namespace: str, checked: ResourceType, spec: Object
) -> None:
    created = await client.create(checked, new(checked, "a", spec={"must": "m", **spec}), namespace)
    assert created["spec"] == {**DEFAULTS, **spec}


async def test_whole_float_is_an_integer(client: Client, namespace: str, checked: ResourceType) -> None:
    created = await client.create(checked, new(checked, "a", spec={"must": "m", "range": 2.0}), namespace)
    assert created["spec"]["range"] == 2
    assert isinstance(created["spec"]["range"], int)


@pytest.mark.parametrize("value", [{"x": 1, "y": 2}, {}])
async def test_one_of_requires_exactly_one_match(
    client: Client, namespace: str, checked: ResourceType, value: Object
) -> None:
    with pytest.raises(Invalid, match=r'"spec.oneOf" must validate one and only one schema'):
        await client.create(checked, new(checked, "a", spec={"must": "m", "oneOf": value}), namespace)


async def test_missing_required_object_is_rejected(client: Client, namespace: str, checked: ResourceType) -> None:
    with pytest.raises(Invalid, match=r"spec: Required value"):
        await client.create(checked, new(checked, "a"), namespace)


async def test_all_errors_are_reported(client: Client, namespace: str, checked: ResourceType) -> None:
    with pytest.raises(Invalid) as refused:
        await client.create(checked, new(checked, "a", spec={"must": "m", "enum": "C", "range": 0}), namespace)
    fields = {cause["field"] for cause in refused.value.details["causes"]}
    assert {"spec.enum", "spec.range"} <= fields
    assert 'Checked.schemas.example.com "a" is invalid: [' in refused.value.message


# Defaults


async def test_missing_fields_get_their_defaults(client: Client, namespace: str, checked: ResourceType) -> None:
    created = await client.create(checked, new(checked, "a", spec={"must": "m"}), namespace)
    assert created["spec"] == DEFAULTS


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"defaulted": None}, {"defaulted": "d"}),
        ({"defaulted": ""}, {"defaulted": ""}),
        ({"object": None}, {"object": {"a": 1}}),
        ({"object": {"b": {}}}, {"object": {"a": 1, "b": {"c": 2}}}),
        ({"object": {"a": 5}}, {"object": {"a": 5}}),
        ({"byName": [{"name": "x"}]}, {"byName": [{"name": "x", "value": "v"}]}),
    ],
)
async def test_nested_fields_get_their_defaults(
    client: Client, namespace: str, checked: ResourceType, spec: Object, expected: Object
) -> None:
    created = await client.create(checked, new(checked, "a", spec={"must": "m", **spec}), namespace)
    assert created["spec"] == {**DEFAULTS, **expected}


async def test_removed_field_gets_its_default_again(client: Client, namespace: str, checked: ResourceType) -> None:
    await client.create(checked, new(checked, "a", spec={"must": "m", "defaulted": "x"}), namespace)
    patched = await client.patch(checked, "a", MergePatch({"spec": {"defaulted": None, "object": None}}), namespace)
    assert patched["spec"] == DEFAULTS


# Pruning


async def test_unknown_fields_are_pruned(client: Client, namespace: str, checked: ResourceType) -> None:
    wanted = new(checked, "a", spec={"must": "m", "unknown": 1, "object": {"a": 1, "z": 2}}, also={"unknown": 1})
    created = await client.create(checked, wanted, namespace)
    assert created["spec"] == DEFAULTS
    assert "also" not in created


async def test_unknown_fields_of_a_patch_are_pruned(client: Client, namespace: str, checked: ResourceType) -> None:
    created = await client.create(checked, new(checked, "a", spec={"must": "m"}), namespace)
    assert await client.patch(checked, "a", MergePatch({"spec": {"unknown": 1}}), namespace) == created


async def test_preserved_fields_are_still_validated(client: Client, namespace: str, checked: ResourceType) -> None:
    free = {"known": {"a": "1", "b": 2}, "other": {"b": 2}}
    created = await client.create(checked, new(checked, "a", spec={"must": "m", "free": free}), namespace)
    assert created["spec"]["free"] == {"known": {"a": "1"}, "other": {"b": 2}}


async def test_embedded_objects_keep_their_fields_and_lose_unknown_metadata(
    client: Client, namespace: str, checked: ResourceType
) -> None:
    embedded = {"apiVersion": "v1", "kind": "Any", "metadata": {"name": "n", "unknown": 1}, "data": {"x": 1}}
    created = await client.create(checked, new(checked, "a", spec={"must": "m", "embedded": embedded}), namespace)
    assert created["spec"]["embedded"] == {
        "apiVersion": "v1",
        "kind": "Any",
        "metadata": {"name": "n"},
        "data": {"x": 1},
    }


async def test_unknown_metadata_are_pruned(client: Client, namespace: str, checked: ResourceType) -> None:
    wanted = new(checked, "a", metadata={"unknown": 1}, spec={"must": "m"})
    assert "unknown" not in (await client.create(checked, wanted, namespace))["metadata"]


@pytest.mark.parametrize("metadata", [{"labels": {"a": 1}}, {"annotations": ["a"]}, {"finalizers": "a"}])
async def test_metadata_are_validated_for_custom_kinds(
    client: Client, namespace: str, checked: ResourceType, metadata: Object
) -> None:
    with pytest.raises(BadRequest, match=r'Checked in version "v1" cannot be handled as a Checked'):
        await client.create(checked, new(checked, "a", metadata=metadata, spec={"must": "m"}), namespace)


async def test_names_of_custom_objects_are_subdomains(client: Client, namespace: str, checked: ResourceType) -> None:
    with pytest.raises(Invalid, match=r"metadata.name: Invalid value"):
        await client.create(checked, new(checked, "Bad_Name", spec={"must": "m"}), namespace)


# Rules


async def test_transition_rule_is_enforced(client: Client, namespace: str, checked: ResourceType) -> None:
    await client.create(checked, new(checked, "a", spec={"must": "m", "immutable": "x"}), namespace)
    with pytest.raises(Invalid) as refused:
        await client.patch(checked, "a", MergePatch({"spec": {"immutable": "y"}}), namespace)
    assert refused.value.message == (
        'Checked.schemas.example.com "a" is invalid: spec.immutable: Invalid value: "y": it is immutable'
    )
    patched = await client.patch(checked, "a", MergePatch({"spec": {"immutable": "x", "must": "n"}}), namespace)
    assert patched["spec"]["must"] == "n"
    # A rule on a value says nothing about the value going away, nor about it coming back.
    await client.patch(checked, "a", MergePatch({"spec": {"immutable": None}}), namespace)
    await client.patch(checked, "a", MergePatch({"spec": {"immutable": "z"}}), namespace)


# What was valid once


async def test_unchanged_invalid_value_does_not_block_an_update(client: Client, namespace: str) -> None:
    """Ratcheting: a stricter schema complains only about what a write touches."""
    type = custom_type(f"{namespace}.example.com")
    spec: Object = {"type": "object", "properties": {"n": {"type": "integer"}, "m": {"type": "integer"}}}
    wanted = definition(type, {"type": "object", "properties": {"spec": spec}})
    await install(client, wanted)
    await client.create(type, new(type, "a", spec={"n": 50}), namespace)
    spec["properties"]["n"]["maximum"] = 10
    await client.patch(CUSTOM_RESOURCE_DEFINITION, type.group_resource, MergePatch({"spec": wanted["spec"]}))

    async def refuses() -> bool:
        try:
            await client.create(type, new(type, "b", spec={"n": 11}), namespace, dry_run=True)
        except Invalid:
            return True
        except TooManyRequests:
            pass
        return False

    await until(refuses)
    patched = await client.patch(type, "a", MergePatch({"spec": {"m": 1}}), namespace)
    assert patched["spec"] == {"n": 50, "m": 1}
    with pytest.raises(Invalid):
        await client.patch(type, "a", MergePatch({"spec": {"n": 51}}), namespace)
