from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.causes import Cause
from sandpool.api.kinds import CONFIG_MAP, SANDBOX
from sandpool.api.schema.shape import Shape
from sandpool.kube.errors import BadRequest, Invalid
from sandpool.server.builtin import built_in_resources
from sandpool.server.kinds.strategies import KindStrategy
from sandpool.server.registry.decoding import (
    Unreadable,
    check_duplicates,
    expect_kind,
    expect_name,
    expect_namespace,
    fit,
    refuse_invalid,
)
from sandpool.server.resources import Resource
from sandpool.testing.objects import new

CONFIG_MAPS = next(each for each in built_in_resources() if each.type == CONFIG_MAP)
SPEC = Shape(type="object", properties={"size": Shape(type="integer", default=1)})
SANDBOXES = Resource(SANDBOX, lambda: Shape(type="object", properties={"spec": SPEC}), KindStrategy(), custom=True)


@pytest.mark.parametrize("resource", [CONFIG_MAPS, SANDBOXES], ids=["built in", "custom"])
def test_missing_kind_is_filled_in(resource: Resource) -> None:
    for nothing in ({}, {"kind": ""}, {"apiVersion": "", "kind": None}):
        obj = expect_kind(resource, {**nothing, "metadata": {"name": "a"}})
        assert (obj["kind"], obj["apiVersion"]) == (resource.type.kind, resource.type.api_version)


@pytest.mark.parametrize("body", [None, [], "x", 1, {"metadata": []}, {"metadata": "x"}])
def test_body_that_is_no_object_is_rejected(body: Any) -> None:
    with pytest.raises(Unreadable, match='ConfigMap in version "v1" cannot be handled as a ConfigMap: '):
        expect_kind(CONFIG_MAPS, body)


def test_another_kind_is_rejected_by_create_and_update() -> None:
    other = {"kind": "Secret", "apiVersion": "v1"}
    with pytest.raises(BadRequest, match='Secret in version "v1" cannot be handled as a ConfigMap'):
        expect_kind(CONFIG_MAPS, other)
    with pytest.raises(BadRequest, match=r"the API version in the data \(v1\) does not match the expected"):
        expect_kind(SANDBOXES, other)
    with pytest.raises(Invalid, match='kind: Invalid value: "Secret": must be Sandbox'):
        expect_kind(SANDBOXES, {"kind": "Secret", "apiVersion": SANDBOX.api_version})


def test_name_and_namespace_of_the_body_must_match_the_url() -> None:
    expect_name({}, "a")
    expect_name({"name": "a"}, "a")
    expect_namespace(CONFIG_MAPS, {}, "n")
    expect_namespace(CONFIG_MAPS, {"namespace": "n"}, "n")
    with pytest.raises(BadRequest, match=r"the name of the object \(b\) does not match the name on the URL \(a\)"):
        expect_name({"name": "b"}, "a")
    with pytest.raises(BadRequest, match="namespace of the provided object"):
        expect_namespace(CONFIG_MAPS, {"namespace": "m"}, "n")


@pytest.mark.parametrize("resource", [CONFIG_MAPS, SANDBOXES], ids=["built in", "custom"])
def test_field_validation_decides_on_unknown_and_duplicate_fields(resource: Resource) -> None:
    obj = new(resource.type, "a", nonsense={"x": 1})
    warnings: list[str] = []
    fitted, causes = fit(resource, obj, None, "Warn", warnings, ("metadata.name",))
    assert warnings == ['unknown field "nonsense"', 'duplicate field "metadata.name"']
    assert "nonsense" not in fitted
    assert not causes
    assert "nonsense" not in fit(resource, obj, None, "Ignore", warnings)[0]
    assert len(warnings) == 2
    with pytest.raises(BadRequest, match='strict decoding error: unknown field "nonsense"'):
        fit(resource, obj, None, "Strict", [])


def test_wrong_type_is_a_bad_request_or_an_invalid_object() -> None:
    """kube-apiserver decodes built-in kinds into structs and custom ones into maps, and it shows."""
    with pytest.raises(Unreadable, match="json: cannot unmarshal"):
        fit(CONFIG_MAPS, new(CONFIG_MAP, "a", data={"k": 1}), None, "Strict", [])
    _, causes = fit(SANDBOXES, new(SANDBOX, "a", spec={"size": "x"}), None, "Strict", [])
    assert [cause.field for cause in causes] == ["spec.size"]


def test_defaults_are_filled_in() -> None:
    fitted, _ = fit(SANDBOXES, new(SANDBOX, "a", spec={}), None, "Strict", [])
    assert fitted["spec"] == {"size": 1}


def test_valid_object_is_returned_as_is() -> None:
    obj = new(CONFIG_MAP, "a", data={"k": "v"})
    assert fit(CONFIG_MAPS, obj, None, "Strict", [])[0] is obj


def test_duplicates_of_a_patch_follow_field_validation() -> None:
    warnings: list[str] = []
    check_duplicates(CONFIG_MAPS, ("a", "b"), "Warn", warnings)
    check_duplicates(CONFIG_MAPS, ("a",), "Ignore", warnings)
    check_duplicates(CONFIG_MAPS, (), "Strict", warnings)
    assert warnings == ['duplicate field "a"', 'duplicate field "b"']
    with pytest.raises(Unreadable) as refused:
        check_duplicates(CONFIG_MAPS, ("a",), "Strict", warnings)
    assert refused.value.why == 'strict decoding error: duplicate field "a"'


def test_invalid_object_is_named_by_its_name_or_prefix() -> None:
    cause = Cause("spec", "FieldValueInvalid", "Invalid value: 1: no")
    refuse_invalid(CONFIG_MAPS, {}, [])
    for metadata, name in (({"name": "a"}, "a"), ({"generateName": "g-"}, "g-"), (None, "")):
        with pytest.raises(Invalid) as refused:
            refuse_invalid(CONFIG_MAPS, {"metadata": metadata}, [cause])
        assert refused.value.details.get("name", "") == name
