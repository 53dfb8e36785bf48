"""Representation of responses: JSON, indented for browsers, YAML and gzip on request."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import orjson
import pytest
import yaml

from sandpool.kube.errors import NotAcceptable
from sandpool.server.http.representation import PLAIN, Representation, choose
from sandpool.server.request.messages import Response, ServerRequest

if TYPE_CHECKING:
    from tests.server.http.conftest import Bench

POD = "/api/v1/namespaces/default/pods/p"


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", PLAIN),
        ("application/json", PLAIN),
        ("*/*", PLAIN),
        ("application/json, */*", PLAIN),
        ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", PLAIN),
        ("application/vnd.kubernetes.protobuf,application/json", PLAIN),
        ("application/yaml", Representation(yaml=True)),
        ("application/yaml;q=0.5,application/json", PLAIN),
    ],
)
def test_accept_header_chooses_the_media_type(accept: str, expected: Representation) -> None:
    assert choose(POD, {}, {"accept": accept}) == expected


@pytest.mark.parametrize("path", [POD, "/apis", "/api", "/apis/apps/v1/deployments"])
def test_unknown_media_type_is_not_acceptable(path: str) -> None:
    with pytest.raises(NotAcceptable, match="only the following media types are accepted: application/json"):
        choose(path, {}, {"accept": "text/html"})


@pytest.mark.parametrize(
    "path", ["/healthz", "/openapi/v3", "/version", f"{POD}/log", f"{POD}/proxy/a/b", "/api/v1/nodes/n/proxy"]
)
def test_only_api_objects_are_negotiated(path: str) -> None:
    assert choose(path, {}, {"accept": "text/html"}) is PLAIN


def test_namespace_can_be_named_log() -> None:
    assert choose("/api/v1/namespaces/log", {}, {"accept": "application/yaml"}).yaml


@pytest.mark.parametrize(
    ("query", "agent", "pretty"),
    [
        ({}, "kubectl/v1.36", False),
        ({}, "curl/8", True),
        ({}, "Wget/1", True),
        ({}, "Mozilla/5.0 (X11)", True),
        ({"pretty": "false"}, "curl/8", False),
        ({"pretty": "true"}, "kubectl/v1.36", True),
        ({"pretty": "0"}, "", False),
        ({"other": "1"}, "", False),
    ],
)
def test_browsers_and_curl_get_indented_json(query: dict[str, str], agent: str, pretty: bool) -> None:
    assert choose(POD, query, {"user-agent": agent}).pretty is pretty


async def test_yaml_is_served_on_request(bench: Bench) -> None:
    wire = await bench.connect()
    wire.request("GET", "/api/v1/namespaces/default", "Accept: application/yaml")
    answer = await wire.answer()
    assert answer.headers["content-type"] == "application/yaml"
    assert yaml.safe_load(answer.body)["path"] == "/api/v1/namespaces/default"


async def test_errors_have_the_negotiated_form(bench: Bench) -> None:
    async def missing(request: ServerRequest) -> Response:
        raise NotAcceptable("no")

    bench.handler.routes["/api/v1/nodes"] = missing
    wire = await bench.connect()
    wire.request("GET", "/api/v1/nodes", "Accept: application/yaml")
    assert yaml.safe_load((await wire.answer()).body)["kind"] == "Status"


async def test_not_acceptable_reaches_the_client_before_the_handler(bench: Bench) -> None:
    wire = await bench.connect()
    wire.request("POST", "/api/v1/namespaces", "Accept: text/html")
    answer = await wire.answer()
    assert (answer.status, answer.json["reason"]) == (406, "NotAcceptable")
    assert not bench.handler.requests


async def test_indented_json_ends_with_a_newline(bench: Bench) -> None:
    wire = await bench.connect()
    wire.request("GET", "/x", "User-Agent: curl/8.0")
    body = (await wire.answer()).body
    assert body.startswith(b'{\n  "method"')
    assert body.endswith(b"}\n")


@pytest.mark.parametrize(
    ("size", "accepts", "compressed"),
    [(200_000, "deflate, gzip", True), (200_000, "identity", False), (100_000, "gzip", False)],
)
async def test_large_responses_are_compressed(bench: Bench, size: int, accepts: str, compressed: bool) -> None:
    async def large(request: ServerRequest) -> Response:
        return Response(object={"text": "x" * size})

    bench.handler.routes["/large"] = large
    wire = await bench.connect()
    wire.request("GET", "/large", f"Accept-Encoding: {accepts}")
    answer = await wire.answer()
    assert answer.headers.get("content-encoding") == ("gzip" if compressed else None)
    body = gzip.decompress(answer.body) if compressed else answer.body
    assert len(orjson.loads(body)["text"]) == size


async def test_plain_text_is_sent_unchanged(bench: Bench) -> None:
    async def text(request: ServerRequest) -> Response:
        return Response(encoded=b"ok", content_type="text/plain", headers=[("X-Extra", "1"), ("X-Bad", "a\r\nb: c")])

    bench.handler.routes["/healthz"] = text
    wire = await bench.connect()
    wire.request("GET", "/healthz", "User-Agent: curl/8.0")
    answer = await wire.answer()
    assert (answer.body, answer.headers["content-type"], answer.headers["x-extra"]) == (b"ok", "text/plain", "1")
    assert "x-bad" not in answer.headers
    assert "b" not in answer.headers
