"""JSON patches (RFC 6902)."""

from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.kinds import CONFIG_MAP
from sandpool.api.resource import ResourceType
from sandpool.kube.client import Client, JsonPatch
from sandpool.kube.errors import ApiError, BadRequest, Conflict, Invalid
from sandpool.kube.transport import JSON_PATCH, Request
from sandpool.testing.objects import new

SPEC: dict[str, Any] = {"a": 1, "list": [1, 2, 3], "map": {"x": 1}, "with/slash": 1, "with~tilde": 2}


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ([{"op": "add", "path": "/spec/b", "value": {"y": 2}}], {"b": {"y": 2}}),
        ([{"op": "add", "path": "/spec/a", "value": 5}], {"a": 5}),
        ([{"op": "add", "path": "/spec/list/1", "value": 9}], {"list": [1, 9, 2, 3]}),
        ([{"op": "add", "path": "/spec/list/-", "value": 4}], {"list": [1, 2, 3, 4]}),
        ([{"op": "add", "path": "/spec/list/3", "value": 4}], {"list": [1, 2, 3, 4]}),
        ([{"op": "remove", "path": "/spec/list/0"}], {"list": [2, 3]}),
        ([{"op": "remove", "path": "/spec/map/x"}], {"map": {}}),
        ([{"op": "replace", "path": "/spec/list/0", "value": 7}], {"list": [7, 2, 3]}),
        ([{"op": "replace", "path": "/spec/map", "value": None}], {"map": None}),
        ([{"op": "replace", "path": "/spec/missing", "value": 1}], {"missing": 1}),
        ([{"op": "move", "from": "/spec/map/x", "path": "/spec/y"}], {"map": {}, "y": 1}),
        ([{"op": "copy", "from": "/spec/list", "path": "/spec/copied"}], {"copied": [1, 2, 3]}),
        ([{"op": "replace", "path": "/spec/with~1slash", "value": 8}], {"with/slash": 8}),
        ([{"op": "replace", "path": "/spec/with~0tilde", "value": 8}], {"with~tilde": 8}),
        ([{"op": "test", "path": "/spec/list", "value": [1, 2, 3]}], {}),
        (
            [{"op": "test", "path": "/spec/a", "value": 1}, {"op": "replace", "path": "/spec/a", "value": 2}],
            {"a": 2},
        ),
    ],
    ids=lambda value: value[-1]["op"] + value[-1]["path"].replace("/", "-") if isinstance(value, list) else "",
)
async def test_json_patch_operations_are_applied(
    client: Client, namespace: str, widgets: ResourceType, operations: list[Any], expected: dict[str, Any]
) -> None:
    await client.create(widgets, new(widgets, "a", spec=SPEC), namespace)
    patched = await client.patch(widgets, "a", JsonPatch(operations), namespace)
    assert patched["spec"] == {**SPEC, **expected}


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "test", "path": "/spec/a", "value": 2},
        {"op": "test", "path": "/spec/missing", "value": 2},
        {"op": "remove", "path": "/spec/missing"},
        {"op": "replace", "path": "/spec/missing/deeper", "value": 1},
        {"op": "replace", "path": "/spec/list/3", "value": 1},
        {"op": "add", "path": "/spec/list/4", "value": 1},
        {"op": "add", "path": "/spec/missing/deeper", "value": 1},
        {"op": "move", "from": "/spec/missing", "path": "/spec/b"},
        {"op": "copy", "from": "/spec/missing/deeper", "path": "/spec/b"},
    ],
    ids=lambda operation: operation["op"] + operation["path"].replace("/", "-"),
)
async def test_failing_json_patch_operation_changes_nothing(
    client: Client, namespace: str, widgets: ResourceType, operation: dict[str, Any]
) -> None:
    created = await client.create(widgets, new(widgets, "a", spec=SPEC), namespace)
    first = {"op": "add", "path": "/spec/first", "value": 1}
    with pytest.raises(Invalid) as refused:
        await client.patch(widgets, "a", JsonPatch([first, operation]), namespace)
    assert refused.value.message.startswith("the server rejected our request due to an error in our request")
    assert await client.get(widgets, "a", namespace) == created


@pytest.mark.parametrize(
    "body",
    [
        {"op": "add", "path": "/spec/a", "value": 1},
        ["add"],
        "text",
        b"[{",
    ],
)
async def test_body_that_is_no_json_patch_is_rejected(
    client: Client, namespace: str, widgets: ResourceType, body: Any
) -> None:
    created = await client.create(widgets, new(widgets, "a", spec=SPEC), namespace)
    with pytest.raises(BadRequest):
        await client.transport.request(Request("PATCH", widgets.path(namespace, "a"), {}, body, JSON_PATCH))
    assert await client.get(widgets, "a", namespace) == created


async def test_unknown_json_patch_operation_is_rejected(client: Client, namespace: str, widgets: ResourceType) -> None:
    await client.create(widgets, new(widgets, "a", spec=SPEC), namespace)
    with pytest.raises(ApiError) as refused:
        await client.patch(widgets, "a", JsonPatch([{"op": "frob", "path": "/spec/a"}]), namespace)
    assert refused.value.code in (400, 422)


async def test_more_than_10000_operations_are_rejected(client: Client, namespace: str, widgets: ResourceType) -> None:
    await client.create(widgets, new(widgets, "a", spec=SPEC), namespace)
    operations = [{"op": "replace", "path": "/spec/a", "value": n} for n in range(10_001)]
    with pytest.raises(ApiError) as refused:
        await client.patch(widgets, "a", JsonPatch(operations), namespace)
    assert refused.value.code == 413
    assert refused.value.message == (
        "Request entity too large: The allowed maximum operations in a JSON patch is 10000, got 10001"
    )


async def test_empty_json_patch_changes_nothing(client: Client, namespace: str, widgets: ResourceType) -> None:
    created = await client.create(widgets, new(widgets, "a", spec=SPEC), namespace)
    assert await client.patch(widgets, "a", JsonPatch([]), namespace) == created


async def test_resource_version_in_a_json_patch_is_a_precondition(client: Client, namespace: str) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={"k": "0"}), namespace)
    patch = JsonPatch(
        [
            {"op": "replace", "path": "/metadata/resourceVersion", "value": created["metadata"]["resourceVersion"]},
            {"op": "replace", "path": "/data/k", "value": "1"},
        ]
    )
    assert (await client.patch(CONFIG_MAP, "a", patch, namespace))["data"] == {"k": "1"}
    with pytest.raises(Conflict, match=r"the object has been modified"):
        await client.patch(CONFIG_MAP, "a", patch, namespace)


async def test_operation_on_the_resource_version_is_a_precondition(client: Client, namespace: str) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={"k": "0"}), namespace)
    patch = JsonPatch(
        [
            {"op": "test", "path": "/metadata/resourceVersion", "value": created["metadata"]["resourceVersion"]},
            {"op": "replace", "path": "/data/k", "value": "1"},
        ]
    )
    assert (await client.patch(CONFIG_MAP, "a", patch, namespace))["data"] == {"k": "1"}
    with pytest.raises(Invalid):
        await client.patch(CONFIG_MAP, "a", patch, namespace)
