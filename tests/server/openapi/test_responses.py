from __future__ import annotations

import orjson
import pytest

from sandpool.kube.errors import NotAcceptable
from sandpool.server.openapi import index, respond_v2, respond_v3
from sandpool.server.resources import Resource

PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"


@pytest.mark.parametrize("accept", ["", "*/*", "application/json", "text/html, application/json;q=0.5"])
def test_version_2_is_json_unless_protobuf_is_asked_for(resources: list[Resource], accept: str) -> None:
    response = respond_v2(resources, accept)
    assert response.content_type == "application/json"
    assert orjson.loads(response.encode())["swagger"] == "2.0"


@pytest.mark.parametrize("accept", ["application/com.github.proto-openapi.spec.v2@v1.0+protobuf", PROTOBUF])
def test_version_2_in_protobuf_is_named_by_a_valid_media_type(resources: list[Resource], accept: str) -> None:
    response = respond_v2(resources, f"{accept}, application/json")
    assert response.content_type == PROTOBUF
    assert response.encode().startswith(b"\x0a\x032.0")


def test_version_2_has_no_other_form(resources: list[Resource]) -> None:
    with pytest.raises(NotAcceptable):
        respond_v2(resources, "text/html")


def test_however_it_is_asked_for_there_is_one_copy(resources: list[Resource]) -> None:
    assert respond_v2(resources, "*/*").encoded is respond_v2(resources, "application/json").encoded


def test_a_document_of_version_3_can_be_kept_by_its_hash(resources: list[Resource]) -> None:
    url = index(resources)["paths"]["apis/example.com/v1"]["serverRelativeURL"]
    hash = url.partition("?hash=")[2]
    response = respond_v3(resources, "apis/example.com/v1", hash)
    assert response is not None
    headers = dict(response.headers)
    assert headers["ETag"] == f'"{hash}"'
    assert "immutable" in headers["Cache-Control"]
    plain = respond_v3(resources, "apis/example.com/v1")
    assert plain is not None
    assert "Cache-Control" not in dict(plain.headers)
    assert respond_v3(resources, "apis/example.com/v9") is None
