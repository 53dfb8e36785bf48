"""Decoding of built-in objects as Go structs decode them. The expected values come from kube-apiserver 1.36."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandpool.api import kinds
from sandpool.api.resource import Object
from sandpool.api.schema.admit import Undecodable, compile_admission
from sandpool.api.schema.core import shape_of

admit_pod = compile_admission(shape_of(kinds.POD))
admit_config_map = compile_admission(shape_of(kinds.CONFIG_MAP))


def pod(spec: dict[str, Any] | None = None, metadata: Any = None, **container: Any) -> Object:
    containers = [{"name": "c", "image": "i", **container}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", **(metadata or {})},
        "spec": {"containers": containers, **(spec or {})},
    }


def config_map(**fields: Any) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "p"}, **fields}


def stored_spec(obj: Object) -> dict[str, Any]:
    spec: dict[str, Any] = admit_pod(obj).object["spec"]
    return spec


def stored_container(**fields: Any) -> dict[str, Any]:
    container: dict[str, Any] = stored_spec(pod(**fields))["containers"][0]
    del container["name"], container["image"]
    return container


FIELD = "json: cannot unmarshal {} into Go struct field {} of type {}"


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        (config_map(data={"a": 1}), FIELD.format("number", "ConfigMap.data", "string")),
        (config_map(data=[]), FIELD.format("array", "ConfigMap.data", "map[string]string")),
        (config_map(immutable="x"), FIELD.format("string", "ConfigMap.immutable", "bool")),
        (config_map(metadata=5), FIELD.format("number", "ConfigMap.metadata", "v1.ObjectMeta")),
        (
            config_map(metadata={"labels": {"a": 1}}),
            FIELD.format("number", "ObjectMeta.metadata.labels", "string"),
        ),
        (config_map(metadata={"name": 1}), FIELD.format("number", "ObjectMeta.metadata.name", "string")),
        (
            config_map(metadata={"creationTimestamp": 5}),
            FIELD.format("number", "ObjectMeta.metadata.creationTimestamp", "string"),
        ),
        (config_map(binaryData={"a": "!!"}), "illegal base64 data at input byte 0"),
        (config_map(binaryData={"a": "YQ"}), "illegal base64 data at input byte 0"),
        (pod({"priority": "x"}), FIELD.format("string", "PodSpec.spec.priority", "int32")),
        (pod({"priority": 1.5}), FIELD.format("number 1.5", "PodSpec.spec.priority", "int32")),
        (
            pod({"terminationGracePeriodSeconds": 99999999999999999999}),
            FIELD.format("number 99999999999999999999", "PodSpec.spec.terminationGracePeriodSeconds", "int64"),
        ),
        (pod({"containers": {}}), FIELD.format("object", "PodSpec.spec.containers", "[]v1.Container")),
        (pod({"containers": ["x"]}), FIELD.format("string", "PodSpec.spec.containers", "v1.Container")),
        (pod({"restartPolicy": 1}), FIELD.format("number", "PodSpec.spec.restartPolicy", "v1.RestartPolicy")),
        (pod({"hostNetwork": "yes"}), FIELD.format("string", "PodSpec.spec.hostNetwork", "bool")),
        (pod({"affinity": []}), FIELD.format("array", "PodSpec.spec.affinity", "v1.Affinity")),
        (
            pod(env=[{"name": "A", "value": 1}]),
            FIELD.format("number", "EnvVar.spec.containers.env.value", "string"),
        ),
        (
            pod(ports=[{"containerPort": 80.0}]),
            FIELD.format("number 80.0", "ContainerPort.spec.containers.ports.containerPort", "int32"),
        ),
        (pod(command="x"), FIELD.format("string", "Container.spec.containers.command", "[]string")),
        (pod(command=[1]), FIELD.format("number", "Container.spec.containers.command", "string")),
        (
            pod(livenessProbe={"httpGet": {"port": True}}),
            FIELD.format("bool", "HTTPGetAction.spec.containers.livenessProbe.ProbeHandler.httpGet.port", "int32"),
        ),
        (
            pod(metadata={"ownerReferences": [{"uid": 1}]}),
            FIELD.format("number", "OwnerReference.metadata.ownerReferences.uid", "types.UID"),
        ),
        (
            pod(resources={"limits": {"cpu": "x"}}),
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
        (
            pod(resources={"limits": {"cpu": {}}}),
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
    ],
)
def test_undecodable_values_are_reported_in_the_words_of_go(obj: Object, message: str) -> None:
    admit = admit_pod if obj["kind"] == "Pod" else admit_config_map
    with pytest.raises(Undecodable) as raised:
        admit(obj)
    assert str(raised.value) == message


def test_unknown_fields_are_dropped_and_reported_in_order() -> None:
    owner = {"bar": 1, "apiVersion": "v1", "kind": "X", "name": "x", "uid": "u"}
    admitted = admit_config_map(config_map(metadata={"name": "x", "foo": 1, "ownerReferences": [owner]}, zip=1))
    assert admitted.unknown == ["metadata.foo", "metadata.ownerReferences[0].bar", "zip"]
    assert admitted.object["metadata"]["ownerReferences"] == [{k: v for k, v in owner.items() if k != "bar"}]
    assert admit_pod(pod({"Containers": []})).unknown == ["spec.Containers"], "names are case sensitive"


def test_empty_values_are_dropped_where_go_omits_them() -> None:
    spec = {"hostNetwork": False, "nodeSelector": {}, "tolerations": [], "securityContext": None, "hostname": ""}
    assert set(stored_spec(pod(spec))) == {"containers"}
    assert stored_container(env=[{"name": "A", "value": ""}])["env"] == [{"name": "A"}]


def test_empty_values_are_kept_where_they_have_a_meaning() -> None:
    assert stored_spec(pod({"automountServiceAccountToken": False}))["automountServiceAccountToken"] is False
    assert stored_spec(pod({"terminationGracePeriodSeconds": 0}))["terminationGracePeriodSeconds"] == 0
    assert stored_spec(pod({"volumes": [{"name": "v", "emptyDir": {}}]}))["volumes"] == [{"name": "v", "emptyDir": {}}]
    security = {"runAsUser": 0, "runAsNonRoot": False, "supplementalGroups": []}
    assert stored_spec(pod({"securityContext": security}))["securityContext"] == {"runAsUser": 0, "runAsNonRoot": False}


def test_structs_are_always_encoded() -> None:
    assert stored_container() == {"resources": {}}
    assert admit_pod({"apiVersion": "v1", "kind": "Pod"}).object == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {},
        "spec": {"containers": None},
        "status": {},
    }
    service = compile_admission(shape_of(kinds.SERVICE))({"apiVersion": "v1", "kind": "Service"}).object
    assert service["status"] == {"loadBalancer": {}}


def test_lists_that_are_always_encoded_are_null_when_empty() -> None:
    admit = compile_admission(shape_of(kinds.ROLE))
    variants: list[dict[str, Any]] = [{}, {"rules": None}, {"rules": []}]
    for rules in variants:
        assert admit({"kind": "Role", **rules}).object == {"kind": "Role", "metadata": {}, "rules": None}


def test_absent_event_times_are_null() -> None:
    event = compile_admission(shape_of(kinds.CORE_EVENT))(
        {"involvedObject": {}, "firstTimestamp": "2026-01-01T01:02:03.456+01:00"}
    ).object
    assert event == {
        "metadata": {},
        "involvedObject": {},
        "source": {},
        "firstTimestamp": "2026-01-01T00:02:03Z",
        "lastTimestamp": None,
        "eventTime": None,
        "reportingComponent": "",
        "reportingInstance": "",
    }


def test_declared_defaults_are_filled_in() -> None:
    assert stored_container(ports=[{"containerPort": 80, "protocol": ""}])["ports"] == [
        {"containerPort": 80, "protocol": "TCP"}
    ]
    assert stored_container(livenessProbe={"grpc": {"port": 1}})["livenessProbe"] == {
        "grpc": {"port": 1, "service": ""}
    }
    field = {"resourceFieldRef": {"resource": "limits.cpu"}}
    assert stored_container(env=[{"name": "A", "valueFrom": field}])["env"][0]["valueFrom"] == {
        "resourceFieldRef": {"resource": "limits.cpu", "divisor": "0"}
    }
    secret = {"secretKeyRef": {"key": "x"}}
    assert stored_container(env=[{"name": "A", "valueFrom": secret}])["env"][0]["valueFrom"] == secret


def test_quantities_are_stored_in_canonical_form() -> None:
    limits = {"cpu": "1000m", "memory": 1073741824, "a": 0.5, "b": "1024Mi", "c": None}
    assert stored_container(resources={"limits": limits})["resources"]["limits"] == {
        "cpu": "1",
        "memory": "1073741824",
        "a": "500m",
        "b": "1Gi",
        "c": "0",
    }


def test_nulls_in_lists_and_maps_become_zero_values() -> None:
    assert stored_spec(pod({"nodeSelector": {"a": None}}))["nodeSelector"] == {"a": ""}
    assert stored_spec(pod({"containers": [None]}))["containers"] == [{"name": "", "resources": {}}]
    assert admit_config_map(config_map(data=None)).object == config_map()


def test_nested_schemas_lose_unknown_keywords_silently() -> None:
    schema = {
        "type": "object",
        "foo": 1,
        "properties": {
            "a": {"type": "array", "items": {"type": "object", "bar": 1}},
            "b": {"type": "object", "additionalProperties": {"type": "string", "baz": 1}},
            "c": {"type": "object", "additionalProperties": True, "default": {"x": None}},
        },
    }
    admitted = compile_admission(shape_of(kinds.CUSTOM_RESOURCE_DEFINITION))(
        {"spec": {"versions": [{"name": "v1", "schema": {"openAPIV3Schema": schema}}]}}
    )
    assert admitted.unknown == ["spec.versions[0].schema.openAPIV3Schema.foo"]
    assert admitted.object["spec"]["versions"][0]["schema"]["openAPIV3Schema"] == {
        "type": "object",
        "properties": {
            "a": {"type": "array", "items": {"type": "object"}},
            "b": {"type": "object", "additionalProperties": {"type": "string"}},
            "c": {"type": "object", "additionalProperties": True, "default": {"x": None}},
        },
    }


def test_managed_fields_are_not_decoded() -> None:
    entry: dict[str, Any] = {
        "manager": "m",
        "operation": "Apply",
        "fieldsV1": {"f:a": {"k:{}": {}, ".": {}}},
        "time": None,
    }
    stored = admit_config_map(config_map(metadata={"name": "p", "managedFields": [entry]})).object["metadata"]
    assert stored["managedFields"] == [{key: entry[key] for key in ("manager", "operation", "fieldsV1")}]


def test_stored_object_is_returned_as_is() -> None:
    stored = admit_pod(pod(env=[{"name": "A"}], resources={"limits": {"cpu": "1"}})).object
    assert admit_pod(stored).object is stored
    labelled = {**stored, "metadata": {"name": "p", "labels": {"a": "b"}}}
    assert admit_pod(labelled, stored).object is labelled


words = st.sampled_from(
    ["spec", "metadata", "containers", "name", "env", "value", "limits", "resources", "cpu", "ports"]
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(words, json_values), json_values)
def test_decoding_of_any_json_is_idempotent(fields: dict[str, Any], containers: Any) -> None:
    try:
        first = admit_pod({"spec": {"containers": containers}, **fields})
    except Undecodable:
        return
    second = admit_pod(first.object)
    assert second.object is first.object
    assert second.unknown == []
