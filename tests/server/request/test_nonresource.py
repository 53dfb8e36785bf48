from __future__ import annotations

import orjson
import pytest

from sandpool.api.kinds import DEPLOYMENT, POD
from sandpool.api.schema import core
from sandpool.kube.errors import NotFound
from sandpool.server.kinds.strategies import KindStrategy
from sandpool.server.request.messages import Response, ServerRequest, User
from sandpool.server.request.nonresource import NonResourceHandler
from sandpool.server.resources import Resource, ResourceTable

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


@pytest.fixture
def resources() -> ResourceTable:
    table = ResourceTable()
    table.add(Resource(POD, lambda: core.shape_of(POD), KindStrategy()))
    table.add(Resource(DEPLOYMENT, lambda: core.shape_of(DEPLOYMENT), KindStrategy()))
    return table


@pytest.fixture
def documents(resources: ResourceTable) -> NonResourceHandler:
    return NonResourceHandler(resources, lambda: "127.0.0.1:6443", lambda: True)


def get(documents: NonResourceHandler, path: str, query: dict[str, str] | None = None, **headers: str) -> Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return documents.answer(ServerRequest("GET", path, User("u"), query=query or {}, headers=named))


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/api", "APIVersions"),
        ("/api/", "APIVersions"),
        ("/apis", "APIGroupList"),
        ("/apis/apps", "APIGroup"),
        ("/api/v1", "APIResourceList"),
        ("/apis/apps/v1", "APIResourceList"),
    ],
)
def test_discovery_documents_are_served(documents: NonResourceHandler, path: str, kind: str) -> None:
    assert orjson.loads(get(documents, path).encode())["kind"] == kind


@pytest.mark.parametrize(
    "path", ["/apis/nope", "/apis/apps/v9", "/api/v2", "/openapi/v2", "/openapi/v3/apis/nope/v1", "/nope"]
)
def test_unknown_documents_are_not_found(documents: NonResourceHandler, path: str) -> None:
    with pytest.raises(NotFound, match="the server could not find the requested resource"):
        get(documents, path)


def test_not_modified_response_keeps_the_content_type(documents: NonResourceHandler) -> None:
    """A client merges the headers of a 304 into what it kept. With any other content type kubectl would read the
    aggregated discovery it has as something else, and know no resource at all."""
    whole = get(documents, "/apis", accept=AGGREGATED)
    tag = dict(whole.headers)["ETag"]
    again = get(documents, "/apis", accept=AGGREGATED, if_none_match=tag)
    assert (whole.status, again.status, again.encode()) == (200, 304, b"")
    assert again.content_type == whole.content_type == AGGREGATED
    assert dict(again.headers)["ETag"] == tag


def test_documents_follow_the_resources(documents: NonResourceHandler, resources: ResourceTable) -> None:
    tag = dict(get(documents, "/apis", accept=AGGREGATED).headers)["ETag"]
    resources.replace(DEPLOYMENT.group_resource, [])
    assert get(documents, "/apis", accept=AGGREGATED, if_none_match=tag).status == 200
    with pytest.raises(NotFound):
        get(documents, "/apis/apps/v1")


def test_openapi_documents_are_served_by_hash(documents: NonResourceHandler) -> None:
    url = orjson.loads(get(documents, "/openapi/v3").encode())["paths"]["apis/apps/v1"]["serverRelativeURL"]
    path, _, content_hash = url.partition("?hash=")
    kept = get(documents, path, {"hash": content_hash})
    assert "immutable" in dict(kept.headers)["Cache-Control"]
    assert "Cache-Control" not in dict(get(documents, path).headers)
    assert get(documents, path, {"hash": content_hash}, if_none_match=f'"{content_hash}"').status == 304


def test_version_and_health_are_served(documents: NonResourceHandler) -> None:
    assert orjson.loads(get(documents, "/version").encode())["major"] == "1"
    assert get(documents, "/healthz").encode() == b"ok"
