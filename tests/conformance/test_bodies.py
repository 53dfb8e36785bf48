"""Bodies of requests, good and bad: nothing crashes the server and nothing half-written remains."""

from __future__ import annotations

import pytest

from sandpool.api.kinds import CONFIG_MAP, POD
from sandpool.api.resource import ResourceType
from sandpool.kube.client import Client
from sandpool.kube.errors import BadRequest, Invalid
from sandpool.testing.objects import new
from tests.support.api_access import ApiResponse, Raw

JSON = "application/json"
YAML = "application/yaml"
PROTOBUF = "application/vnd.kubernetes.protobuf"
MERGE = "application/merge-patch+json"
UNKNOWN_FORMAT = (
    "the body of the request was in an unknown format - accepted media types include: "
    "application/json, application/yaml, application/vnd.kubernetes.protobuf"
)


async def post(raw: Raw, namespace: str, body: bytes, content_type: str | None = JSON) -> ApiResponse:
    headers = {"Content-Type": content_type} if content_type is not None else {}
    return await raw("POST", CONFIG_MAP.path(namespace), body=body, headers=headers)


async def patch(raw: Raw, namespace: str, body: bytes, content_type: str | None) -> ApiResponse:
    headers = {"Content-Type": content_type} if content_type is not None else {}
    return await raw("PATCH", CONFIG_MAP.path(namespace, "a") + "?fieldManager=t", body=body, headers=headers)


async def nothing_was_written(client: Client, namespace: str) -> bool:
    listed = await client.list(CONFIG_MAP, namespace, field_selector="metadata.name!=kube-root-ca.crt")
    return not listed["items"]


# What is understood


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b'{"metadata":{"name":"a"},"data":{"k":"v"}}', JSON),
        (b' \n{"metadata":{"name":"a"},"data":{"k":"v"}}\n\n', JSON),
        (b'{"metadata":{"name":"a"},"data":{"k":"v"}}', "application/json; charset=utf-8"),
        (b'{"metadata":{"name":"a"},"data":{"k":"v"}}', None),
        (b'{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"},"data":{"k":"v"}}', JSON),
        (b"metadata:\n  name: a\ndata:\n  k: v\n", YAML),
        (b"---\nmetadata: {name: a}\ndata: {k: v}\n", YAML),
        (b'{"metadata":{"name":"a"},"data":{"k":"v"}}', YAML),
        (b'{"metadata":{"name":"a"},"data":{"k":"\\u0076"}}', JSON),
    ],
)
async def test_json_and_yaml_bodies_are_accepted(
    raw: Raw, namespace: str, body: bytes, content_type: str | None
) -> None:
    answer = await post(raw, namespace, body, content_type)
    assert answer.status == 201, answer.body
    assert answer.json()["data"] == {"k": "v"}


async def test_text_is_stored_unchanged(raw: Raw, client: Client, namespace: str) -> None:
    text = 'quotes " and \\ and \n lines, ünïcödé, 日本, 🎉, \u2028 and \x7f'
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={"k": text}), namespace)
    assert (await client.get(CONFIG_MAP, "a", namespace))["data"] == {"k": text}
    assert (await raw("GET", CONFIG_MAP.path(namespace, "a"))).json()["data"] == {"k": text}


async def test_large_numbers_are_stored_unchanged(client: Client, namespace: str, widgets: ResourceType) -> None:
    spec = {"big": 2**53 + 1, "negative": -(2**62), "small": 1e-9}
    created = await client.create(widgets, new(widgets, "a", spec=spec), namespace)
    assert created["spec"] == spec


# What is not


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b"5",
        b'{"metadata":{"name":"a"}} trailing',
        b'{"metadata":{"name":"a"}}{"metadata":{"name":"b"}}',
        b'{"metadata":{"name":"a"},}',
        b"{'metadata':{'name':'a'}}",
        b'{"metadata":{"name":"a"},"x":NaN}',
        b'// comment\n{"metadata":{"name":"a"}}',
        b'{"metadata":{"name":"a"},"data":{"k":"a\tb"}}',
        b'\xff\xfe{"metadata":{"name":"a"}}',
        b'{"kind":5,"metadata":{"name":"a"}}',
        b'{"apiVersion":"a/b/c","kind":"ConfigMap","metadata":{"name":"a"}}',
    ],
)
async def test_malformed_json_is_a_bad_request(raw: Raw, client: Client, namespace: str, body: bytes) -> None:
    answer = await post(raw, namespace, body)
    status = answer.json()
    assert (answer.status, status["kind"], status["reason"], status["code"]) == (400, "Status", "BadRequest", 400)
    assert status["message"].startswith("the object provided is unrecognized (must be of type ConfigMap): ")
    assert await nothing_was_written(client, namespace)


@pytest.mark.parametrize("body", [b"a: b: c", b"metadata: {name: [}", b"- a\n", b"metadata:\n\tname: a", b"text"])
async def test_malformed_yaml_is_a_bad_request(raw: Raw, client: Client, namespace: str, body: bytes) -> None:
    answer = await post(raw, namespace, body, YAML)
    assert (answer.status, answer.json()["reason"]) == (400, "BadRequest")
    assert await nothing_was_written(client, namespace)


@pytest.mark.parametrize("body", [b"", b"xxxx", b"k8s\0\xff\xff\xff", b"k8s\0", b"k8s\0\x0a\xff\xff\xff\xff\x0f"])
async def test_malformed_protobuf_is_rejected(raw: Raw, client: Client, namespace: str, body: bytes) -> None:
    answer = await post(raw, namespace, body, PROTOBUF)
    assert answer.status in (400, 422)
    assert answer.json()["kind"] == "Status"
    assert await nothing_was_written(client, namespace)


@pytest.mark.parametrize("body", [b"null", b"{}", b'{"metadata":null}', b'{"metadata":{}}'])
async def test_empty_object_is_invalid(raw: Raw, namespace: str, body: bytes) -> None:
    answer = await post(raw, namespace, body)
    assert answer.status == 422
    assert answer.json()["message"] == (
        'ConfigMap "" is invalid: metadata.name: Required value: name or generateName is required'
    )


@pytest.mark.parametrize(
    "body",
    [
        b'{"metadata":[]}',
        b'{"metadata":{"name":5}}',
        b'{"metadata":{"name":"a","labels":["x"]}}',
        b'{"metadata":{"name":"a","labels":{"x":true}}}',
        b'{"metadata":{"name":"a","finalizers":"x"}}',
        b'{"metadata":{"name":"a"},"data":{"k":1}}',
        b'{"metadata":{"name":"a"},"data":"x"}',
        b'{"metadata":{"name":"a"},"immutable":"yes"}',
        b'{"metadata":{"name":"a"},"binaryData":{"k":"not base64!"}}',
        b'{"metadata":{"name":"a","creationTimestamp":"yesterday"}}',
    ],
)
async def test_wrong_types_are_a_bad_request(raw: Raw, client: Client, namespace: str, body: bytes) -> None:
    answer = await post(raw, namespace, body)
    assert (answer.status, answer.json()["reason"]) == (400, "BadRequest")
    assert answer.json()["message"].startswith('ConfigMap in version "v1" cannot be handled as a ConfigMap: ')
    assert await nothing_was_written(client, namespace)


@pytest.mark.parametrize(
    "spec",
    [
        {"containers": "x"},
        {"containers": [5]},
        {"containers": [{"name": 1}]},
        {"containers": [{"name": "a", "ports": [{"containerPort": "http"}]}]},
        {"containers": [{"name": "a", "ports": [{"containerPort": 2**40}]}]},
        {"containers": [], "hostNetwork": "true"},
        {"containers": [], "nodeSelector": {"a": 1}},
        {"containers": [], "terminationGracePeriodSeconds": 1.5},
    ],
)
async def test_wrong_types_in_nested_fields_are_a_bad_request(
    client: Client, namespace: str, spec: dict[str, object]
) -> None:
    with pytest.raises(BadRequest, match=r'Pod in version "v1" cannot be handled as a Pod: '):
        await client.create(POD, new(POD, "a", spec=spec), namespace)


async def test_last_of_duplicate_keys_wins(raw: Raw, namespace: str) -> None:
    answer = await post(raw, namespace, b'{"metadata":{"name":"a"},"metadata":{"name":"b"}}')
    assert (answer.status, answer.json()["metadata"]["name"]) == (201, "b")
    assert answer.warnings == ('299 - "duplicate field \\"metadata\\""',)


# Media types


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/xml", MERGE, "application/octet-stream", "nonsense"]
)
async def test_unknown_media_type_is_unsupported(raw: Raw, namespace: str, content_type: str) -> None:
    answer = await post(raw, namespace, b'{"metadata":{"name":"a"}}', content_type)
    assert answer.status == 415
    assert answer.json()["message"] == UNKNOWN_FORMAT
    assert answer.json()["reason"] == "UnsupportedMediaType"


@pytest.mark.parametrize("content_type", ["text/plain", JSON, YAML, "nonsense"])
async def test_media_type_that_is_no_patch_is_unsupported(
    raw: Raw, client: Client, namespace: str, content_type: str
) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    answer = await patch(raw, namespace, b'{"data":{"k":"v"}}', content_type)
    assert (answer.status, answer.json()["reason"]) == (415, "UnsupportedMediaType")


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"", MERGE),
        (b"null", MERGE),
        (b"{", MERGE),
        (b"[]", "application/strategic-merge-patch+json"),
        (b'{"a":1', "application/strategic-merge-patch+json"),
        (b"{", "application/json-patch+json"),
        (b"", "application/json-patch+json"),
        (b"", "application/apply-patch+yaml"),
        (b"a: [", "application/apply-patch+yaml"),
    ],
)
async def test_malformed_patches_are_rejected(
    raw: Raw, client: Client, namespace: str, body: bytes, content_type: str
) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    answer = await patch(raw, namespace, body, content_type)
    assert (answer.status, answer.json()["reason"]) == (400, "BadRequest")
    assert await client.get(CONFIG_MAP, "a", namespace) == created


# Too much of it


async def test_oversized_body_is_rejected(raw: Raw, client: Client, namespace: str) -> None:
    body = b'{"metadata":{"name":"a"},"data":{"k":"%s"}}' % (b"v" * (3 << 20))
    answer = await post(raw, namespace, body)
    assert answer.status == 413
    assert answer.json()["reason"] == "RequestEntityTooLarge"
    assert answer.json()["message"] == "Request entity too large: limit is 3145728"
    assert await nothing_was_written(client, namespace)


@pytest.mark.parametrize(
    "nested",
    [
        b'{"metadata":{"name":"a"},"x":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
        b'{"metadata":{"name":"a"},"x":' + b'{"a":' * 20_000 + b"1" + b"}" * 20_000 + b"}",
    ],
    ids=["lists", "objects"],
)
async def test_deeply_nested_body_is_rejected(raw: Raw, client: Client, namespace: str, nested: bytes) -> None:
    answer = await post(raw, namespace, nested)
    assert answer.status == 400
    assert await nothing_was_written(client, namespace)


async def test_deeply_nested_patch_is_rejected(raw: Raw, client: Client, namespace: str, widgets: ResourceType) -> None:
    await client.create(widgets, new(widgets, "a", spec={}), namespace)
    answer = await raw(
        "PATCH",
        widgets.path(namespace, "a"),
        body=b'{"spec":' + b'{"a":' * 20_000 + b"1" + b"}" * 20_001,
        headers={"Content-Type": MERGE},
    )
    assert 400 <= answer.status < 500
    assert (await client.get(widgets, "a", namespace))["spec"] == {}


async def test_moderate_nesting_is_accepted(client: Client, namespace: str, widgets: ResourceType) -> None:
    value: object = 1
    for _ in range(100):
        value = {"a": [value]}
    created = await client.create(widgets, new(widgets, "a", spec={"v": value}), namespace)
    assert created["spec"]["v"] == value


async def test_config_map_over_1_mib_is_rejected(client: Client, namespace: str) -> None:
    with pytest.raises(Invalid, match=r"Too long: may not be more than 1048576 bytes"):
        await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={"k": "v" * ((1 << 20) + 1)}), namespace)


async def test_annotations_over_256_kib_are_rejected(client: Client, namespace: str) -> None:
    with pytest.raises(Invalid, match=r"metadata.annotations: Too long: may not be more than 262144 bytes"):
        annotations = {"k": "v" * ((256 << 10) + 1)}
        await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", metadata={"annotations": annotations}), namespace)


# Metadata that is refused

QUALIFIED = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"labels": {"bad key": "v"}}, f'metadata.labels: Invalid value: "bad key": {QUALIFIED}'),
        ({"annotations": {"bad key": "v"}}, f'metadata.annotations: Invalid value: "bad key": {QUALIFIED}'),
        ({"labels": {"a": "bad value"}}, 'metadata.labels: Invalid value: "bad value": a valid label must be'),
        ({"labels": {"a" * 64: "v"}}, "name part must be no more than 63"),
        ({"labels": {"a": "v" * 64}}, "must be no more than 63"),
        ({"labels": {"Bad_Prefix/a": "v"}}, 'metadata.labels: Invalid value: "Bad_Prefix/a": prefix part'),
        ({"labels": {"a/b/c": "v"}}, "a valid label key must consist of alphanumeric characters"),
    ],
)
async def test_invalid_metadata_are_rejected(
    client: Client, namespace: str, metadata: dict[str, object], message: str
) -> None:
    with pytest.raises(Invalid) as refused:
        await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", metadata=metadata), namespace)
    assert message in refused.value.message


@pytest.mark.parametrize("key", ["bad key", "a/b", "a" * 254, ".", ".."])
async def test_invalid_keys_of_a_config_map_are_rejected(client: Client, namespace: str, key: str) -> None:
    with pytest.raises(Invalid) as refused:
        await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={key: "v"}), namespace)
    assert f'data[{key}]: Invalid value: "{key}": ' in refused.value.message
