"""Non-resource endpoints: health, version, discovery and OpenAPI.

These documents depend on the set of served resources only, so each is built once per generation of that set and cached
in encoded form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from sandpool.api.kinds import AGENTS_GROUP, EXTENSIONS_GROUP, SANDBOX
from sandpool.kube.errors import NotFound
from sandpool.kube.transport import JSON
from sandpool.server import openapi
from sandpool.server.request import discovery
from sandpool.server.request.messages import Response, ServerRequest
from sandpool.server.request.negotiation import DISCOVERY_FORMS, negotiate
from sandpool.server.resources import ResourceTable

NO_SUCH_RESOURCE = "the server could not find the requested resource"
# Served by agent-sandbox before 1.0, with a conversion webhook.
_REMOVED_VERSION = (frozenset({AGENTS_GROUP, EXTENSIONS_GROUP}), "v1alpha1")
_HEALTH = ("healthz", "livez", "readyz")


def no_such_resource(group: str, version: str) -> NotFound:
    """The error for a resource or a group version that is not served."""
    groups, removed = _REMOVED_VERSION
    if group in groups and version == removed:
        return NotFound(
            f"{NO_SUCH_RESOURCE}: {group}/{removed} is no longer served; use {group}/{SANDBOX.version}, "
            "in which all objects are stored"
        )
    return NotFound(NO_SUCH_RESOURCE)


class NonResourceHandler:
    def __init__(self, resources: ResourceTable, address: Callable[[], str], ready: Callable[[], bool]) -> None:
        self._resources = resources
        self._address = address  # host:port for clients; known once the server listens
        self._ready = ready
        self._generation = -1
        self._cache: dict[tuple[str, str, str], Response] = {}

    def answer(self, request: ServerRequest) -> Response:
        path = "/" + request.path.strip("/")
        if request.method not in ("GET", "HEAD"):
            raise NotFound(NO_SUCH_RESOURCE)
        segments = path.strip("/").split("/")
        if segments[0] in _HEALTH:
            return self._health(segments[0], verbose="verbose" in request.query)
        response = self._cached(path, request.headers.get("accept", ""), request.query.get("hash", ""))
        tag = next((value for name, value in response.headers if name == "ETag"), None)
        if tag is not None and request.headers.get("if-none-match") == tag:
            # A client merges these headers into its cached response, so the content type must be that of the document.
            return Response(304, encoded=b"", content_type=response.content_type, headers=response.headers)
        return response

    def _health(self, which: str, *, verbose: bool) -> Response:
        text = "text/plain; charset=utf-8"
        if which == "readyz" and not self._ready():
            text_body = f"[+]ping ok\n[-]started failed: the server is starting or stopping\n{which} check failed\n"
            return Response(500, encoded=text_body.encode(), content_type=text)
        if verbose:
            text_body = f"[+]ping ok\n[+]started ok\n{which} check passed\n"
            return Response(encoded=text_body.encode(), content_type=text)
        return Response(encoded=b"ok", content_type=text)

    def _cached(self, path: str, accept: str, content_hash: str) -> Response:
        if self._generation != self._resources.generation:
            self._generation = self._resources.generation
            self._cache.clear()
        key = (path, accept, content_hash)
        response = self._cache.get(key)
        if response is None:
            response = self._build(path, accept, content_hash)
            # Accept headers and hashes come from clients: bound the cache.
            if len(self._cache) > 1000:
                self._cache.clear()
            self._cache[key] = response
        return response

    def _build(self, path: str, accept: str, content_hash: str) -> Response:
        resources = self._resources
        match path.strip("/").split("/"):
            case [""]:
                return _json({"paths": self._paths()})
            case ["version"]:
                return _json(discovery.version())
            case ["api"] | ["apis"]:
                return self._groups(path, accept)
            case ["api", version]:
                return _json(discovery.resource_list(resources, "", version))
            case ["apis", group]:
                return _json(discovery.group(resources, group))
            case ["apis", group, version]:
                listing = discovery.resource_list(resources, group, version)
                if listing is None:
                    raise no_such_resource(group, version)
                return _json(listing)
            case ["openapi", "v3"]:
                return _json(openapi.index(resources))
            case ["openapi", "v3", *rest]:
                document = openapi.respond(resources, "/".join(rest), content_hash)
                if document is not None:
                    return document
        raise NotFound(NO_SUCH_RESOURCE)

    def _groups(self, path: str, accept: str) -> Response:
        chosen = negotiate(accept, forms=DISCOVERY_FORMS)
        core = path == "/api"
        if chosen.as_:
            document = discovery.aggregated(self._resources, core=core, version=chosen.version)
            encoded = orjson.dumps(document)
            headers = [("ETag", discovery.etag(encoded)), ("Vary", "Accept")]
            return Response(encoded=encoded, content_type=chosen.content_type, headers=headers)
        return _json(discovery.api_versions(self._address()) if core else discovery.group_list(self._resources))

    def _paths(self) -> list[str]:
        paths = {"/api", "/apis", "/version", "/openapi/v3", *(f"/{name}" for name in _HEALTH)}
        for resource in self._resources:
            paths.add(resource.type.base_path)
            if resource.type.group:
                paths.add(f"/apis/{resource.type.group}")
        return sorted(paths)


def _json(document: Any) -> Response:
    if document is None:
        raise NotFound(NO_SUCH_RESOURCE)
    return Response(encoded=orjson.dumps(document), content_type=JSON)
