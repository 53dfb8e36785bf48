from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.kinds import CONFIG_MAP
from sandpool.api.resource import Key
from sandpool.kube.client import Client
from sandpool.kube.errors import BadRequest, NotAcceptable
from sandpool.kube.transport import MERGE_PATCH
from sandpool.server.api_server import ApiServer
from sandpool.server.auth.tokens import ADMIN
from sandpool.server.request.messages import Response, ServerRequest
from sandpool.server.request.views import warning
from sandpool.testing.objects import new
from tests.support.api_objects import custom_type, definition
from tests.support.custom_kinds import install

WIDGET = custom_type("example.com")
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
METADATA = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
METADATA_LIST = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"


async def ask(server: ApiServer, path: str, accept: str = "", method: str = "GET", **more: Any) -> Response:
    headers = {"accept": accept, "content-type": more.pop("content_type", "")}
    return await server.handler.handle(ServerRequest(method, path, ADMIN, headers=headers, **more))


async def test_stored_bytes_are_sent_unchanged(server: ApiServer, client: Client) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), "default")
    entry = server.store.get("configmaps", Key("default", "a"))
    assert entry is not None
    answer = await ask(server, CONFIG_MAP.path("default", "a"))
    assert answer.encoded is entry.encoded


async def test_only_items_of_custom_kinds_have_a_kind(server: ApiServer, client: Client) -> None:
    await install(client, definition(WIDGET))
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={"k": "v"}), "default")
    await client.create(WIDGET, new(WIDGET, "w"), "default")
    maps = (await ask(server, CONFIG_MAP.path("default"))).decode()
    assert (maps["kind"], maps["apiVersion"]) == ("ConfigMapList", "v1")
    assert list(maps["items"][0]) == ["metadata", "data"] or set(maps["items"][0]) == {"metadata", "data"}
    widgets = (await ask(server, WIDGET.path("default"))).decode()
    assert [item["kind"] for item in widgets["items"]] == ["Widget"]


async def test_empty_list_is_a_list(server: ApiServer) -> None:
    assert (await ask(server, CONFIG_MAP.path("default"))).decode()["items"] == []


async def test_tables_and_partial_metadata_are_served(server: ApiServer, client: Client) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={"k": "v"}), "default")
    table = (await ask(server, CONFIG_MAP.path("default", "a"), TABLE)).decode()
    assert table["kind"] == "Table"
    assert table["rows"][0]["cells"][:2] == ["a", 1]
    only = (await ask(server, CONFIG_MAP.path("default", "a"), METADATA)).decode()
    assert only["kind"] == "PartialObjectMetadata"
    assert only["metadata"] == created["metadata"]
    assert "data" not in only
    listed = (await ask(server, CONFIG_MAP.path("default"), METADATA_LIST)).decode()
    assert [item["metadata"]["name"] for item in listed["items"]] == ["a"]


async def test_write_is_answered_in_the_requested_form(server: ApiServer, client: Client) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), "default")
    path = CONFIG_MAP.path("default", "a")
    answer = await ask(server, path, METADATA, "PATCH", body=b'{"data":{"k":"v"}}', content_type=MERGE_PATCH)
    assert answer.decode()["kind"] == "PartialObjectMetadata"


async def test_unservable_form_is_rejected(server: ApiServer) -> None:
    with pytest.raises(NotAcceptable):
        await ask(server, CONFIG_MAP.path("default"), "text/html")
    with pytest.raises(BadRequest):
        await ask(server, CONFIG_MAP.path("default"), TABLE, query={"includeObject": "x"})


async def test_write_is_answered_with_warnings(server: ApiServer) -> None:
    body = b'{"metadata":{"name":"a"},"non\\u0000sense":1}'
    answer = await ask(server, CONFIG_MAP.path("default"), method="POST", body=body)
    assert answer.headers == [("Warning", '299 - "unknown field \\"non sense\\""')]


@pytest.mark.parametrize(
    "text, value",
    [
        ("plain", '299 - "plain"'),
        ('a "b" \\', '299 - "a \\"b\\" \\\\"'),
        ("a\r\nSet-Cookie: b\0\x7f", '299 - "a  Set-Cookie: b  "'),
        ("é", '299 - "é"'),
    ],
)
def test_warning_is_one_valid_header_line(text: str, value: str) -> None:
    assert warning(text) == ("Warning", value)
