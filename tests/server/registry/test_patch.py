from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.kinds import CONFIG_MAP, DEPLOYMENT, POD, SANDBOX
from sandpool.kube.client import ApplyPatch, Client, JsonPatch, MergePatch, Patch, StrategicPatch
from sandpool.kube.errors import ApiError, BadRequest, Conflict, Invalid, NotFound, TooLarge, UnsupportedMediaType
from sandpool.kube.transport import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, STRATEGIC_MERGE_PATCH, Request
from sandpool.server.api_server import ApiServer
from sandpool.server.builtin import built_in_resources
from sandpool.server.kinds.strategies import KindStrategy
from sandpool.server.registry.patch import check_media_type, media_types
from sandpool.server.resources import Resource
from sandpool.testing.objects import new, pod

CONFIG_MAPS = next(each for each in built_in_resources() if each.type == CONFIG_MAP)
SANDBOXES = Resource(SANDBOX, lambda: CONFIG_MAPS.shape, KindStrategy(), custom=True)


def test_custom_resources_have_no_strategic_patch() -> None:
    assert media_types(CONFIG_MAPS) == (JSON_PATCH, MERGE_PATCH, STRATEGIC_MERGE_PATCH, APPLY_PATCH)
    assert STRATEGIC_MERGE_PATCH not in media_types(SANDBOXES)
    with pytest.raises(UnsupportedMediaType) as refused:
        check_media_type(SANDBOXES, STRATEGIC_MERGE_PATCH)
    assert refused.value.message.endswith(f"include: {JSON_PATCH}, {MERGE_PATCH}, {APPLY_PATCH}")


EVERY_WAY: list[Patch] = [
    MergePatch({"data": {"k": "2"}}),
    StrategicPatch({"data": {"k": "2"}}),
    JsonPatch([{"op": "replace", "path": "/data/k", "value": "2"}]),
    ApplyPatch({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a"}, "data": {"k": "2"}}),
]


@pytest.mark.parametrize("patch", EVERY_WAY, ids=lambda patch: type(patch).__name__)
async def test_every_patch_type_gives_the_same_object(server: ApiServer, client: Client, patch: Patch) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={"k": "1", "l": "1"}), "default")
    before = server.store.revision
    shown = await client.patch(CONFIG_MAP, "a", patch, "default", dry_run=True, force=isinstance(patch, ApplyPatch))
    assert shown["data"] == {"k": "2", "l": "1"}
    assert server.store.revision == before, "a dry run stores nothing"
    patched = await client.patch(CONFIG_MAP, "a", patch, "default", force=isinstance(patch, ApplyPatch))
    assert patched["data"] == {"k": "2", "l": "1"}
    again = await client.patch(CONFIG_MAP, "a", patch, "default", force=isinstance(patch, ApplyPatch))
    assert again["metadata"]["resourceVersion"] == patched["metadata"]["resourceVersion"]


@pytest.mark.parametrize(
    "patch, error",
    [
        (MergePatch({"metadata": {"name": "b"}}), BadRequest),
        (MergePatch({"metadata": {"namespace": "b"}}), BadRequest),
        (MergePatch({"metadata": None}), BadRequest),
        (MergePatch({"metadata": {"uid": "other"}}), Invalid),
        (MergePatch({"metadata": {"resourceVersion": "1"}}), Conflict),
        (MergePatch({"kind": "Secret"}), ApiError),
        (MergePatch({"data": {"k": 1}}), Invalid),
        (JsonPatch([{"op": "replace", "path": "", "value": 1}]), ApiError),
        (JsonPatch([{"op": "test", "path": "/data/k", "value": "other"}]), Invalid),
        (JsonPatch([{"op": "remove", "path": "/data/nothing"}]), Invalid),
    ],
)
async def test_patch_that_gives_an_invalid_object_is_rejected(
    client: Client, patch: Patch, error: type[ApiError]
) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={"k": "1"}), "default")
    with pytest.raises(error) as refused:
        await client.patch(CONFIG_MAP, "a", patch, "default")
    assert refused.value.code < 500
    assert await client.get(CONFIG_MAP, "a", "default") == created


async def test_only_apply_creates_a_missing_object(client: Client) -> None:
    for patch in EVERY_WAY[:3]:
        with pytest.raises(NotFound):
            await client.patch(CONFIG_MAP, "a", patch, "default")
    assert (await client.patch(CONFIG_MAP, "a", EVERY_WAY[3], "default"))["data"] == {"k": "2"}


async def test_apply_with_a_uid_does_not_create(client: Client) -> None:
    known: Any = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a", "uid": "u"}}
    with pytest.raises(Conflict, match="no existing object was found"):
        await client.patch(CONFIG_MAP, "a", ApplyPatch(known), "default")
    with pytest.raises(NotFound):
        await client.patch(POD, "p", ApplyPatch(pod("p")), "default", subresource="status")


async def test_duplicate_keys_of_a_patch_are_rejected_or_warned_about(client: Client) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), "default")
    body = b'{"data":{"k":"1","k":"2"}}'
    path = CONFIG_MAP.path("default", "a")
    strict = Request("PATCH", path, {"fieldValidation": "Strict"}, body, MERGE_PATCH)
    with pytest.raises(Invalid, match=r'duplicate field \\"data.k\\"|duplicate field "data.k"'):
        await client.transport.request(strict)
    answer = await client.transport.request(Request("PATCH", path, {}, body, MERGE_PATCH))
    assert answer["data"] == {"k": "2"}


def _growing_patches() -> list[Patch]:
    entry = {"name": "A", "value": "x" * 2_000_000}
    env = "/spec/template/spec/containers/0/env"
    applied = deployment("a", env=[{**entry, "name": "B"}])
    return [
        JsonPatch([{"op": "copy", "from": f"{env}/0", "path": f"{env}/-"}]),
        MergePatch(
            {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "i", "env": [entry] * 2}]}}}}
        ),
        StrategicPatch(
            {"spec": {"template": {"spec": {"containers": [{"name": "main", "env": [{**entry, "name": "B"}]}]}}}}
        ),
        ApplyPatch(applied),
    ]


def deployment(name: str, env: list[Any]) -> Any:
    pods = {"containers": [{"name": "main", "image": "i", "env": env}]}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": pods}}
    return new(DEPLOYMENT, name, spec=spec)


@pytest.mark.parametrize("patch", _growing_patches(), ids=lambda patch: type(patch).__name__)
async def test_patch_cannot_grow_an_object_beyond_the_request_limit(
    server: ApiServer, client: Client, patch: Patch
) -> None:
    entry = {"name": "A", "value": "x" * 2_000_000}
    created = await client.create(DEPLOYMENT, deployment("a", env=[entry]), "default")
    before = server.store.revision
    with pytest.raises(TooLarge, match="limit is 3145728"):
        await client.patch(DEPLOYMENT, "a", patch, "default", force=isinstance(patch, ApplyPatch))
    assert server.store.revision == before
    assert await client.get(DEPLOYMENT, "a", "default") == created
    await client.delete(DEPLOYMENT, "a", "default")
