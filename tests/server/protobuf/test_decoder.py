from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandpool.api.kinds import BUILT_IN
from sandpool.server.protobuf import decode, decoder
from sandpool.server.protobuf.messages import message_of_kind

SAMPLES = json.loads(Path(__file__).with_name("data").joinpath("samples.json").read_text())


def without_nulls(value: Any) -> Any:
    """Go writes an absent list or time as null where it cannot leave it out; to the API that is the same as absent."""
    if isinstance(value, dict):
        return {key: without_nulls(member) for key, member in value.items() if member is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value % (1 << 64))
    return varint(number << 3 | 2) + varint(len(value)) + value


def body(content: bytes, kind: str = "ConfigMap", api_version: str = "v1") -> bytes:
    type_meta = field(1, api_version.encode()) + field(2, kind.encode())
    return b"k8s\x00" + field(1, type_meta) + field(2, content)


# Written by the Go types of Kubernetes: each kind with every field set, and with none.
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample["json"]["kind"])
def test_body_decodes_to_the_json_of_the_same_client(sample: dict[str, Any]) -> None:
    decoded = decode(base64.b64decode(sample["protobuf"]))
    assert without_nulls(decoded) == without_nulls(sample["json"])
    # Nothing the samples say may be lost on the way out either.
    assert orjson.loads(orjson.dumps(decoded)) == decoded


def test_every_built_in_kind_has_a_message() -> None:
    for type in BUILT_IN:
        assert message_of_kind(type.api_version, type.kind) is not None, type


# Bodies recorded from kubectl 1.36.3.
@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        (
            "azhzAAoPCgJ2MRIJTmFtZXNwYWNlEhkKEQoBeBIAGgAiACoAMgA4AEIAEgAaAgoAGgAiAA==",
            {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "x"}, "spec": {}, "status": {}},
        ),
        (
            "azhzAAoPCgJ2MRIJQ29uZmlnTWFwEhsKEQoBYxIAGgAiACoAMgA4AEIAEgYKAWESAWIaACIA",
            {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "c"}, "data": {"a": "b"}},
        ),
        (
            "azhzAAoMCgJ2MRIGU2VjcmV0Eh0KEQoBcxIAGgAiACoAMgA4AEIAEgYKAXASAXEaABoAIgA=",
            {"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "s"}, "data": {"p": "cQ=="}},
        ),
        (
            "azhzAAoyChdhdXRob3JpemF0aW9uLms4cy5pby92MRIXU2VsZlN1YmplY3RBY2Nlc3NSZXZpZXcSPAoQCgASABoAIgAqADIAOABCABIe"
            "ChwKB2RlZmF1bHQSA2dldBoAIgAqBHBvZHMyADoAGggIABIAGgAgABoAIgA=",
            {
                "kind": "SelfSubjectAccessReview",
                "apiVersion": "authorization.k8s.io/v1",
                "metadata": {},
                "spec": {"resourceAttributes": {"namespace": "default", "verb": "get", "resource": "pods"}},
                "status": {"allowed": False},
            },
        ),
        (
            "azhzAAoNCgJ2MRIHU2VydmljZRJjChsKAXMSABoAIgAqADIAOABCAFoICgNhcHASAXMSQAobCgc4MC04MDgwEgNUQ1AYUCIHCAAQkD8a"
            "ACgAEggKA2FwcBIBcxoAIglDbHVzdGVySVA6AEIAUgBaAGAAaAAaAgoAGgAiAA==",
            {
                "kind": "Service",
                "apiVersion": "v1",
                "metadata": {"name": "s", "labels": {"app": "s"}},
                "spec": {
                    "ports": [{"name": "80-8080", "protocol": "TCP", "port": 80, "targetPort": 8080}],
                    "selector": {"app": "s"},
                    "type": "ClusterIP",
                },
                "status": {"loadBalancer": {}},
            },
        ),
        (
            "azhzAAogCglwb2xpY3kvdjESE1BvZERpc3J1cHRpb25CdWRnZXQSNgoRCgFwEgAaACIAKgAyADgAQgASFQoJCAEQABoDNTAlEggKBgoB"
            "YRIBYhoKCAAYACAAKAAwABoAIgA=",
            {
                "kind": "PodDisruptionBudget",
                "apiVersion": "policy/v1",
                "metadata": {"name": "p"},
                "spec": {"minAvailable": "50%", "selector": {"matchLabels": {"a": "b"}}},
                "status": {"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0},
            },
        ),
        (
            "azhzAAolChRzY2hlZHVsaW5nLms4cy5pby92MRINUHJpb3JpdHlDbGFzcxIwChIKAnBjEgAaACIAKgAyADgAQgAQABgAIgAqFFByZWVt"
            "cHRMb3dlclByaW9yaXR5GgAiAA==",
            {
                "kind": "PriorityClass",
                "apiVersion": "scheduling.k8s.io/v1",
                "metadata": {"name": "pc"},
                "value": 0,
                "preemptionPolicy": "PreemptLowerPriority",
            },
        ),
        (
            "azhzAAooChhhdXRoZW50aWNhdGlvbi5rOHMuaW8vdjESDFRva2VuUmVxdWVzdBIdChAKABIAGgAiACoAMgA4AEIAEgMg2AQaBAoAEgAa"
            "ACIA",
            {
                "kind": "TokenRequest",
                "apiVersion": "authentication.k8s.io/v1",
                "metadata": {},
                "spec": {"expirationSeconds": 600},
                "status": {"token": ""},
            },
        ),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else "",
)
def test_recorded_bodies_of_kubectl_are_decoded(recorded: str, expected: dict[str, Any]) -> None:
    assert decode(base64.b64decode(recorded)) == expected


def test_delete_options_of_any_group_are_decoded() -> None:
    assert decode(body(field(4, b"Background"), "DeleteOptions", "apps/v1")) == {
        "kind": "DeleteOptions",
        "apiVersion": "apps/v1",
        "propagationPolicy": "Background",
    }


def test_envelope_without_a_kind_has_the_kind_of_the_path() -> None:
    anonymous = b"k8s\x00" + field(2, field(2, field(1, b"a") + field(2, b"b")))
    assert decode(anonymous, ("v1", "ConfigMap"))["data"] == {"a": "b"}
    with pytest.raises(ValueError, match="no kind"):
        decode(anonymous)


def test_unwritten_zero_is_filled_in_where_json_has_it() -> None:
    assert decode(body(b"", "PriorityClass", "scheduling.k8s.io/v1"))["value"] == 0


def test_split_messages_are_merged_and_the_last_scalar_wins() -> None:
    parts = field(1, field(1, b"old") + field(2, b"generated")) + field(1, field(1, b"new"))
    assert decode(body(parts))["metadata"] == {"name": "new", "generateName": "generated"}
    assert "name" not in decode(body(parts + field(1, field(1, b""))))["metadata"]


def test_packed_numbers_are_decoded() -> None:
    groups = field(4, varint(5) + varint((1 << 64) - 1)) + field(4, 7)
    pod = decode(body(field(2, field(14, groups)), "Pod"))
    assert pod["spec"]["securityContext"]["supplementalGroups"] == [5, -1, 7]


def test_unknown_fields_are_skipped() -> None:
    unknown = field(900, 1) + field(901, b"x") + varint(902 << 3 | 1) + bytes(8) + varint(903 << 3 | 5) + bytes(4)
    assert decode(body(unknown + field(1, field(1, b"n")))) == decode(body(field(1, field(1, b"n"))))


def test_times_before_the_year_1000_have_four_digits() -> None:
    created = field(8, field(1, -62135596799))
    assert decode(body(field(1, created)))["metadata"] == {"creationTimestamp": "0001-01-01T00:00:01Z"}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "does not begin"),
        (b"{}", "does not begin"),
        (b"k8s\x00", "no kind"),
        (body(b"", "Widget", "example.com/v1"), 'no kind "Widget" is registered for version "example.com/v1"'),
        (body(b"")[:-1], "unexpected end"),
        (body(field(1, b"x")), "unexpected end"),
        (body(b"\x0a\xff\xff\xff\xff\x0f"), "unexpected end"),
        (body(b"\x0a"), "unexpected end"),
        (body(b"\x08" + b"\xff" * 10 + b"\x01"), "integer overflow"),
        (body(b"\x08" + b"\xff" * 9 + b"\x7f"), "integer overflow"),
        (body(b"\x00\x00"), "illegal field number 0"),
        (body(b"\x0b"), "illegal wire type 3"),
        (body(b"\x0f"), "illegal wire type 7"),
        (body(field(1, 7)), "wrong wire type 0 for field core/v1.ConfigMap.metadata"),
        (body(field(1, field(7, b"x"))), "wrong wire type 2 for field meta/v1.ObjectMeta.generation"),
        (body(field(1, field(1, b"\xff"))), "not UTF-8"),
        (body(field(1, field(8, field(1, 1 << 60)))), "out of the range of times"),
        (body(field(1, field(8, field(1, b"x")))), "wrong wire type"),
        (body(field(1, field(17, field(7, field(1, b"{"))))), "is not JSON"),
        (b"k8s\x00" + field(3, b"gzip"), "not supported"),
    ],
)
def test_malformed_bodies_are_rejected_with_a_reason(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode(data)


def test_nesting_is_bounded() -> None:
    schema = b""
    for _ in range(200):
        schema = field(28, schema)  # JSONSchemaProps.not
    version = field(4, field(1, schema))
    with pytest.raises(ValueError, match="too deep"):
        decode(body(field(2, field(7, version)), "CustomResourceDefinition", "apiextensions.k8s.io/v1"))


def test_decoded_size_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "_MAX_MESSAGES", 1000)
    many = field(2, field(2, b"") * 1000)  # containers of a pod
    with pytest.raises(ValueError, match="too many parts"):
        decode(body(many, "Pod"))


@settings(deadline=None)
@given(st.binary(max_size=200), st.sampled_from(["Pod", "ConfigMap", "Secret", "Event"]))
def test_any_content_is_decoded_or_rejected(content: bytes, kind: str) -> None:
    try:
        decoded = decode(body(content, kind))
    except ValueError:
        return
    assert decoded["kind"] == kind
    orjson.dumps(decoded)


@settings(deadline=None)
@given(st.sampled_from(SAMPLES), st.data())
def test_damaged_body_is_decoded_or_rejected(sample: dict[str, Any], data: st.DataObject) -> None:
    damaged = bytearray(base64.b64decode(sample["protobuf"]))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    del damaged[data.draw(st.integers(0, len(damaged))) :]
    try:
        orjson.dumps(decode(bytes(damaged)))
    except ValueError:
        return
