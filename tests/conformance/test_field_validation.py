"""Unknown and duplicate fields: refused, warned about or ignored, as fieldValidation says."""

from __future__ import annotations

import pytest
import pytest_asyncio

from sandpool.api.kinds import CONFIG_MAP, POD
from sandpool.api.resource import ResourceType
from sandpool.kube.client import Client, JsonPatch, MergePatch, StrategicPatch
from sandpool.kube.errors import BadRequest, Invalid
from sandpool.testing.objects import new, pod
from tests.support.api_access import ApiResponse, Raw
from tests.support.api_objects import custom_type, definition
from tests.support.custom_kinds import install
from tests.support.extra_verbs import replace

BOTH = b'{"metadata":{"name":"a"},"unknown":1,"data":{"k":"1","k":"2"}}'


async def post(raw: Raw, namespace: str, query: str, body: bytes = BOTH) -> ApiResponse:
    return await raw(
        "POST", CONFIG_MAP.path(namespace) + query, body=body, headers={"Content-Type": "application/json"}
    )


async def test_strict_rejects_unknown_and_duplicate_fields(raw: Raw, namespace: str) -> None:
    answer = await post(raw, namespace, "?fieldValidation=Strict")
    assert answer.status == 400
    assert answer.json()["message"] == (
        'ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: '
        'unknown field "unknown", duplicate field "data.k"'
    )
    assert answer.json()["reason"] == "BadRequest"


@pytest.mark.parametrize("query", ["?fieldValidation=Warn", ""])
async def test_warn_is_the_default_and_sends_warnings(raw: Raw, namespace: str, query: str) -> None:
    answer = await post(raw, namespace, query)
    assert answer.status == 201
    assert answer.json()["data"] == {"k": "2"}
    assert "unknown" not in answer.json()
    assert answer.warnings == ('299 - "unknown field \\"unknown\\""', '299 - "duplicate field \\"data.k\\""')


async def test_ignore_sends_no_warning(raw: Raw, namespace: str) -> None:
    answer = await post(raw, namespace, "?fieldValidation=Ignore")
    assert answer.status == 201
    assert answer.json()["data"] == {"k": "2"}
    assert answer.warnings == ()


async def test_other_field_validation_values_are_rejected(raw: Raw, namespace: str) -> None:
    answer = await post(raw, namespace, "?fieldValidation=Frob")
    assert answer.status == 422
    assert answer.json()["message"] == (
        'CreateOptions.meta.k8s.io "" is invalid: fieldValidation: Unsupported value: "Frob": '
        'supported values: "", "Ignore", "Strict", "Warn"'
    )


async def test_strict_error_names_the_path_of_the_field(client: Client, namespace: str) -> None:
    wanted = pod("a", spec={"containers": [{"name": "a", "image": "i", "x": 1, "ports": [{"containerport": 1}]}]})
    with pytest.raises(BadRequest) as refused:
        await client.create(POD, wanted, namespace, field_validation="Strict")
    prefix = 'Pod in version "v1" cannot be handled as a Pod: strict decoding error: '
    assert set(refused.value.message.removeprefix(prefix).split(", ")) == {
        'unknown field "spec.containers[0].ports[0].containerport"',
        'unknown field "spec.containers[0].x"',
    }


async def test_strict_rejects_unknown_metadata(client: Client, namespace: str) -> None:
    wanted = new(CONFIG_MAP, "a", metadata={"unknown": 1})
    with pytest.raises(BadRequest, match=r'strict decoding error: unknown field "metadata.unknown"'):
        await client.create(CONFIG_MAP, wanted, namespace, field_validation="Strict")


async def test_strict_rejects_unknown_fields_of_an_update(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    with pytest.raises(BadRequest, match=r'strict decoding error: unknown field "unknown"'):
        await replace(client, CONFIG_MAP, new(CONFIG_MAP, "a", unknown=1), namespace, fieldValidation="Strict")


@pytest.mark.parametrize(
    "patch",
    [
        MergePatch({"unknown": 1}),
        StrategicPatch({"unknown": 1}),
        JsonPatch([{"op": "add", "path": "/unknown", "value": 1}]),
    ],
    ids=["merge", "strategic", "json"],
)
async def test_strict_rejects_unknown_fields_of_a_patch(
    client: Client, namespace: str, patch: MergePatch | StrategicPatch | JsonPatch
) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    with pytest.raises(Invalid, match=r'strict decoding error: unknown field "unknown"') as refused:
        await client.patch(CONFIG_MAP, "a", patch, namespace, field_validation="Strict")
    assert [cause["field"] for cause in refused.value.details["causes"]] == ["patch"]
    assert await client.patch(CONFIG_MAP, "a", patch, namespace, field_validation="Warn") == created


async def test_patch_with_duplicate_fields_warns(raw: Raw, client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    answer = await raw(
        "PATCH",
        CONFIG_MAP.path(namespace, "a"),
        body=b'{"unknown":1,"data":{"k":"1","k":"2"}}',
        headers={"Content-Type": "application/merge-patch+json"},
    )
    assert answer.status == 200
    assert answer.warnings == ('299 - "duplicate field \\"data.k\\""', '299 - "unknown field \\"unknown\\""')


async def test_field_names_are_case_sensitive(client: Client, namespace: str) -> None:
    wanted = {**new(CONFIG_MAP, "a"), "Data": {"k": "v"}}
    created = await client.create(CONFIG_MAP, wanted, namespace, field_validation="Ignore")
    assert "data" not in created
    with pytest.raises(BadRequest, match=r'unknown field "Data"'):
        await client.create(CONFIG_MAP, wanted, namespace, field_validation="Strict")


@pytest_asyncio.fixture(loop_scope="session")
async def pruned(client: Client, namespace: str) -> ResourceType:
    """A custom kind whose schema knows only spec.known."""
    type = custom_type(f"{namespace}.example.com")
    spec = {"type": "object", "properties": {"known": {"type": "string"}}}
    await install(client, definition(type, {"type": "object", "properties": {"spec": spec}}))
    return type


async def test_strict_rejects_unknown_fields_of_a_custom_kind(
    raw: Raw, client: Client, namespace: str, pruned: ResourceType
) -> None:
    wanted = new(pruned, "a", spec={"known": "x", "unknown": 1}, other=2)
    with pytest.raises(BadRequest) as refused:
        await client.create(pruned, wanted, namespace, field_validation="Strict")
    assert refused.value.message == (
        'Widget in version "v1" cannot be handled as a Widget: strict decoding error: '
        'unknown field "other", unknown field "spec.unknown"'
    )
    created = await client.create(pruned, wanted, namespace, field_validation="Ignore")
    assert created["spec"] == {"known": "x"}
    assert "other" not in created
    answer = await raw(
        "PATCH",
        pruned.path(namespace, "a"),
        body=b'{"spec":{"unknown":1}}',
        headers={"Content-Type": "application/merge-patch+json"},
    )
    assert answer.warnings == ('299 - "unknown field \\"spec.unknown\\""',)
