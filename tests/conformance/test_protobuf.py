"""Bodies in protobuf, as kubectl and client-go send them for built-in kinds."""

from __future__ import annotations

import base64

import pytest

from sandpool.api.kinds import CONFIG_MAP, NAMESPACE, SECRET, SELF_SUBJECT_ACCESS_REVIEW, SERVICE_ACCOUNT
from sandpool.api.resource import ResourceType
from sandpool.kube.client import Client
from sandpool.testing.objects import new
from tests.support.api_access import ApiResponse, Raw

PROTOBUF = "application/vnd.kubernetes.protobuf"


def varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def field(number: int, value: bytes | str | int) -> bytes:
    """One field of a message: bytes and text with their length, numbers and flags as varints."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def entry(number: int, key: str, value: bytes | str) -> bytes:
    return field(number, field(1, key) + field(2, value))


def metadata(name: str = "", *more: bytes) -> bytes:
    return field(1, field(1, name) + b"".join(more))


def envelope(type: ResourceType, message: bytes) -> bytes:
    kind = field(1, type.api_version) + field(2, type.kind)
    return b"k8s\0" + field(1, kind) + field(2, message) + field(3, "") + field(4, "")


async def send(raw: Raw, type: ResourceType, namespace: str | None, message: bytes, query: str = "") -> ApiResponse:
    return await raw(
        "POST",
        type.path(namespace) + query,
        body=envelope(type, message),
        headers={"Content-Type": PROTOBUF, "Accept": f"{PROTOBUF},application/json"},
    )


async def test_config_map_is_decoded_from_protobuf(raw: Raw, client: Client, namespace: str) -> None:
    labels = entry(11, "l", "1") + entry(12, "annotation", "2")
    message = metadata("a", labels) + entry(2, "k", "v") + entry(2, "empty", "") + entry(3, "b", b"\0\1") + field(4, 1)
    answer = await send(raw, CONFIG_MAP, namespace, message, "?fieldManager=kubectl-create&fieldValidation=Strict")
    assert answer.status == 201, answer.body
    created = await client.get(CONFIG_MAP, "a", namespace)
    assert created["metadata"]["labels"] == {"l": "1"}
    assert created["metadata"]["annotations"] == {"annotation": "2"}
    assert created["data"] == {"k": "v", "empty": ""}
    assert (created["binaryData"], created["immutable"]) == ({"b": "AAE="}, True)


async def test_secret_is_decoded_from_protobuf(raw: Raw, client: Client, namespace: str) -> None:
    message = metadata("a") + entry(2, "k", b"\xff\0") + field(3, "example.com/kind") + entry(4, "text", "t")
    assert (await send(raw, SECRET, namespace, message)).status == 201
    created = await client.get(SECRET, "a", namespace)
    assert created["type"] == "example.com/kind"
    assert created["data"] == {"k": base64.b64encode(b"\xff\0").decode(), "text": "dA=="}


async def test_namespace_is_decoded_from_protobuf(raw: Raw, client: Client, namespace: str) -> None:
    name = namespace + "-proto"
    assert (await send(raw, NAMESPACE, None, metadata(name) + field(2, b"") + field(3, b""))).status == 201
    assert (await client.get(NAMESPACE, name))["status"] == {"phase": "Active"}


async def test_service_account_is_decoded_from_protobuf(raw: Raw, client: Client, namespace: str) -> None:
    message = metadata("robot") + field(3, field(1, "pull-secret")) + field(4, 0)
    assert (await send(raw, SERVICE_ACCOUNT, namespace, message)).status == 201
    created = await client.get(SERVICE_ACCOUNT, "robot", namespace)
    assert created["imagePullSecrets"] == [{"name": "pull-secret"}]
    assert created["automountServiceAccountToken"] is False


async def test_access_review_is_decoded_from_protobuf(raw: Raw, namespace: str) -> None:
    """``kubectl auth can-i`` sends this request and accepts JSON."""
    attributes = field(1, namespace) + field(2, "get") + field(5, "pods")
    message = metadata() + field(2, field(1, attributes)) + field(3, b"")
    body = envelope(SELF_SUBJECT_ACCESS_REVIEW, message)
    headers = {"Content-Type": PROTOBUF, "Accept": "application/json"}
    answer = await raw("POST", SELF_SUBJECT_ACCESS_REVIEW.path(), body=body, headers=headers)
    assert answer.status == 201
    assert answer.json()["status"]["allowed"] is True


async def test_generate_name_is_decoded_from_protobuf(raw: Raw, client: Client, namespace: str) -> None:
    message = field(1, field(2, "made-")) + entry(2, "k", "v")
    assert (await send(raw, CONFIG_MAP, namespace, message)).status == 201
    listed = await client.list(CONFIG_MAP, namespace)
    assert any(item["metadata"]["name"].startswith("made-") for item in listed["items"])


async def test_protobuf_object_is_validated(raw: Raw, namespace: str) -> None:
    answer = await raw(
        "POST",
        CONFIG_MAP.path(namespace),
        body=envelope(CONFIG_MAP, metadata("Bad Name")),
        headers={"Content-Type": PROTOBUF, "Accept": "application/json"},
    )
    assert answer.status == 422
    assert 'metadata.name: Invalid value: "Bad Name"' in answer.json()["message"]


async def test_protobuf_body_of_another_kind_is_rejected(raw: Raw, namespace: str) -> None:
    answer = await raw(
        "POST",
        CONFIG_MAP.path(namespace),
        body=envelope(SECRET, metadata("a")),
        headers={"Content-Type": PROTOBUF, "Accept": "application/json"},
    )
    assert answer.status == 400


async def test_update_is_decoded_from_protobuf(raw: Raw, client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={"k": "1"}), namespace)
    answer = await raw(
        "PUT",
        CONFIG_MAP.path(namespace, "a"),
        body=envelope(CONFIG_MAP, metadata("a") + entry(2, "k", "2")),
        headers={"Content-Type": PROTOBUF, "Accept": "application/json"},
    )
    assert (answer.status, answer.json()["data"]) == (200, {"k": "2"})


@pytest.mark.parametrize("cut", [10, 25, -3])
async def test_truncated_protobuf_is_rejected(raw: Raw, client: Client, namespace: str, cut: int) -> None:
    body = envelope(CONFIG_MAP, metadata("a") + entry(2, "key", "value"))[:cut]
    headers = {"Content-Type": PROTOBUF, "Accept": "application/json"}
    answer = await raw("POST", CONFIG_MAP.path(namespace), body=body, headers=headers)
    assert answer.status == 400
