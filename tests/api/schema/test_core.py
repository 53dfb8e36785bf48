from __future__ import annotations

import pytest

from sandpool.api import kinds
from sandpool.api.resource import ResourceType
from sandpool.api.schema import core
from sandpool.api.schema.shape import Shape


def every_shape(root: Shape) -> list[Shape]:
    found: dict[int, Shape] = {}
    waiting = [root]
    while waiting:
        shape = waiting.pop()
        if id(shape) not in found:
            found[id(shape)] = shape
            waiting.extend(shape.properties.values())
            waiting.extend(inner for inner in (shape.items, shape.additional) if inner is not None)
    return list(found.values())


@pytest.mark.parametrize("kind", kinds.BUILT_IN, ids=str)
def test_every_built_in_kind_has_a_complete_shape(kind: ResourceType) -> None:
    shape = core.shape_of(kind)
    assert {"apiVersion", "kind", "metadata"} <= set(shape.properties)
    assert core.schemas()[core.definition_of(kind)]["x-kubernetes-group-version-kind"] == [
        {"group": kind.group, "version": kind.version, "kind": kind.kind}
    ]
    for inner in every_shape(shape):
        assert inner.type in ("", "object", "array", "string", "integer", "number", "boolean")
        if inner.type == "array":
            assert inner.items is not None
        if inner.list_type == "map":
            assert inner.items is not None
            assert set(inner.list_keys) <= set(inner.items.properties)


def test_custom_kinds_are_not_built_in() -> None:
    with pytest.raises(KeyError):
        core.shape_of(kinds.SANDBOX)


def test_shapes_are_built_once_and_shared() -> None:
    pod, deployment = core.shape_of(kinds.POD), core.shape_of(kinds.DEPLOYMENT)
    assert core.shape_of(kinds.POD) is pod
    assert deployment.properties["metadata"].properties is pod.properties["metadata"].properties


def test_containers_merge_as_kubectl_expects() -> None:
    containers = core.shape_of(kinds.POD).properties["spec"].properties["containers"]
    assert (containers.list_type, containers.list_keys) == ("map", ("name",))
    assert (containers.patch_strategy, containers.patch_merge_key) == ("merge", "name")
    assert containers.items is not None
    ports = containers.items.properties["ports"]
    assert (ports.list_keys, ports.patch_merge_key) == (("containerPort", "protocol"), "containerPort")
    volumes = core.shape_of(kinds.POD).properties["spec"].properties["volumes"]
    assert volumes.patch_strategy == "merge,retainKeys"


def test_int_or_string_and_quantity_scalars_are_marked() -> None:
    resources = core.definition("io.k8s.api.core.v1.ResourceRequirements").properties["limits"].additional
    assert resources is not None
    assert resources.int_or_string
    assert resources.format == "quantity"
    port = core.definition("io.k8s.api.core.v1.HTTPGetAction").properties["port"]
    assert port.int_or_string
    assert port.format == "int-or-string"


def test_zero_values_are_handled_as_in_go() -> None:
    spec = core.definition("io.k8s.api.core.v1.PodSpec").properties
    assert spec["hostNetwork"].zero == ""
    assert spec["automountServiceAccountToken"].zero == "keep"
    assert spec["containers"].zero == "null"
    assert spec["restartPolicy"].go_type == "v1.RestartPolicy"
    assert core.definition("io.k8s.api.core.v1.LocalObjectReference").properties["name"].zero == "omit"
    assert core.definition("io.k8s.api.core.v1.PodCondition").properties["lastProbeTime"].zero == "null"
    assert core.definition(core.OBJECT_META).properties["creationTimestamp"].zero == ""


def test_shapes_contain_no_descriptions() -> None:
    assert not any(shape.description for kind in kinds.BUILT_IN for shape in every_shape(core.shape_of(kind)))
