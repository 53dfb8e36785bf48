from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.schema.core import definition
from sandpool.api.schema.shape import Shape, from_openapi
from sandpool.server.apply.validate import schema_errors


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ({"spec": {"size": 1, "color": None, "anything": {"x": [1, {"y": None}]}}}, ""),
        ({"spec": {}, "unknown": 1}, ".unknown: field not declared in schema"),
        ({"spec": {"inner": {"c": "1"}}}, ".spec.inner.c: field not declared in schema"),
        ({"spec": {"size": "1"}}, ".spec.size: expected numeric (int or float), got string"),
        ({"spec": {"size": True}}, ".spec.size: expected numeric (int or float), got bool"),
        ({"spec": {"color": 1}}, ".spec.color: expected string, got &value.valueUnstructured{Value:1}"),
        ({"spec": {"limits": "x"}}, ".spec.limits: expected map, got &{x}"),
        ({"spec": {"steps": {"a": 1}}}, ".spec.steps: expected list, got &{map[a:1]}"),
        (
            {"spec": {"steps": [{"a": [None]}]}},
            ".spec.steps[0]: expected string, got &value.valueUnstructured"
            '{Value:map[string]interface {}{"a":[]interface {}{interface {}(nil)}}}',
        ),
        ({"spec": {"tags": ["a", "a"]}}, '.spec.tags: duplicate entries for key [="a"]'),
        (
            {"spec": {"parts": [{"name": "a"}, {"name": "a", "slot": 1}]}},
            '.spec.parts: duplicate entries for key [name="a",slot=1]',
        ),
        (
            {"spec": {"tags": ["a", None]}},
            ".spec.tags: element 1: associative list without keys has an element that's an explicit null",
        ),
        (
            {"spec": {"size": "1", "color": 1}},
            "errors:\n  .spec.color: expected string, got &value.valueUnstructured{Value:1}"
            "\n  .spec.size: expected numeric (int or float), got string",
        ),
        ([], "expected map, got &{[]}"),
    ],
)
def test_schema_errors_have_the_words_of_kube_apiserver(value: Any, found: str, shape: Shape) -> None:
    assert schema_errors(value, shape) == found


def test_unknown_fields_are_accepted_below_a_preserving_schema() -> None:
    inner = {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {"type": "string"}}}}}
    assert schema_errors({"a": {"c": 1}}, from_openapi(inner))
    assert not schema_errors({"a": {"c": 1}}, from_openapi({**inner, "x-kubernetes-preserve-unknown-fields": True}))


def test_scalars_of_a_format_may_have_another_type() -> None:
    probe = definition("io.k8s.api.core.v1.HTTPGetAction")
    assert not schema_errors({"port": 80}, probe)
    assert not schema_errors({"port": "http"}, probe)
    resources = definition("io.k8s.api.core.v1.ResourceRequirements")
    assert not schema_errors({"limits": {"cpu": 1, "memory": "1Gi"}}, resources)
    assert (
        schema_errors({"limits": {"cpu": {"a": 1}}}, resources) == ".limits.cpu: expected any scalar, got &{map[a:1]}"
    )
    time = Shape("string", format="date-time")
    assert schema_errors([1], time) == "expected any scalar, got &{[1]}"
    assert schema_errors("x", Shape("boolean")) == "expected boolean, got &{x}"
