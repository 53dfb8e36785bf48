"""The OpenAPI documents as answers: in the form asked for, and with what clients need to keep them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import orjson

from sandpool.kube.errors import NotAcceptable
from sandpool.kube.transport import JSON
from sandpool.server.openapi import gnostic, v2, v3
from sandpool.server.request.discovery import etag
from sandpool.server.request.messages import Response
from sandpool.server.resources import Resource

_PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
# The name clients ask by. It is not a valid media type, so it is never answered.
_ASKED_PROTOBUF = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"


def respond_v2(resources: Iterable[Resource], accept: str) -> Response:
    """``/openapi/v2`` in JSON or protobuf."""
    wanted = [clause.partition(";")[0].strip() for clause in accept.split(",")]
    for media_type in wanted:
        if media_type in (_PROTOBUF, _ASKED_PROTOBUF):
            return _tagged(_protobuf_v2(tuple(resources)), _PROTOBUF)
        if media_type in (JSON, "*/*", "application/*", "*", ""):
            return _tagged(_json_v2(tuple(resources)), JSON)
    raise NotAcceptable(f"only the following media types are accepted: {JSON}, {_PROTOBUF}")


# These are the largest documents: there is one copy of each, however many ways clients have of asking for it.
@lru_cache(maxsize=1)
def _json_v2(resources: tuple[Resource, ...]) -> bytes:
    return orjson.dumps(v2.document(resources))


@lru_cache(maxsize=1)
def _protobuf_v2(resources: tuple[Resource, ...]) -> bytes:
    return gnostic.encode(v2.document(resources))


def respond_v3(resources: Iterable[Resource], path: str, hash: str = "") -> Response | None:
    """``/openapi/v3/<path>``; None if there is no such document. ``hash`` is the query parameter by which the index
    names one content of the document: under that address it never changes."""
    document = v3.document(resources, path)
    if document is None:
        return None
    response = _tagged(document.encoded, JSON, document.hash)
    if hash == document.hash:
        response.headers.append(("Cache-Control", "public, immutable, max-age=31536000"))
    return response


def _tagged(encoded: bytes, content_type: str, hash: str = "") -> Response:
    tag = f'"{hash}"' if hash else etag(encoded)
    return Response(encoded=encoded, content_type=content_type, headers=[("ETag", tag), ("Vary", "Accept")])
