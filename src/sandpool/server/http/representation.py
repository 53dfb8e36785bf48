"""The wire form of a response: compact or indented JSON, YAML, and gzip.

Handlers respond in compact JSON only. Every conversion costs milliseconds and is off the common path, so it runs in a
thread, and a large one in YAML in a process. A large response is never indented: clients that ask for indentation do so
for a human reader.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Mapping
from typing import Final, NamedTuple

import orjson

from sandpool.kube.errors import NotAcceptable
from sandpool.kube.transport import JSON
from sandpool.server.http.response_head import failure
from sandpool.server.request.body import MAX_BODY
from sandpool.server.request.messages import Response
from sandpool.server.request.negotiation import DISCOVERY_FORMS, OBJECT_FORMS, YAML, negotiate
from sandpool.server.request.yaml_worker import LARGE, YamlWorker, to_yaml

_ANY_FORM = OBJECT_FORMS | DISCOVERY_FORMS
_ALWAYS_ACCEPTABLE = frozenset({"", JSON, "*/*", f"{JSON}, */*"})
# Subresources that return no API objects: their bytes are sent regardless of the Accept header.
_RAW = frozenset({"log", "proxy", "exec", "attach", "portforward"})
#: Larger responses are not indented: decoding and encoding them would hold the interpreter for milliseconds.
_INDENT_BELOW: Final = 1 << 20
_INTERACTIVE = ("curl/", "Wget/", "Mozilla/5.0")


class Representation(NamedTuple):
    yaml: bool = False
    pretty: bool = False


PLAIN = Representation()


def choose(path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> Representation:
    """Choose the form. Raises ``NotAcceptable`` before the handler writes anything."""
    accept = headers.get("accept", "")
    usual = accept in _ALWAYS_ACCEPTABLE
    if usual and not query and not headers.get("user-agent", "").startswith(_INTERACTIVE):
        return PLAIN
    media_type, pretty = JSON, False
    if not usual and path.startswith("/api") and not _is_raw(path):
        wanted = negotiate(accept, forms=_ANY_FORM)
        media_type, pretty = wanted.media_type, wanted.pretty
    asked = query.get("pretty")
    if asked is not None:
        pretty = asked.lower() not in ("", "0", "f", "false")
    elif not pretty:
        pretty = headers.get("user-agent", "").startswith(_INTERACTIVE)
    if media_type == JSON and not pretty:
        return PLAIN
    return Representation(media_type == YAML, pretty)


async def rewrite(response: Response, wanted: Representation, worker: YamlWorker) -> Response:
    """The response in a form other than compact JSON. A large one stays compact unless YAML is wanted."""
    if not response.content_type.startswith(JSON):
        return response
    if wanted.yaml:
        if response.size > MAX_BODY:
            error = NotAcceptable(f"a response of {response.size} bytes is too large for YAML: ask for JSON or a limit")
            return failure(error)
        if response.size > LARGE:
            text = await worker.encode(await asyncio.to_thread(response.encode))
        else:
            text = await asyncio.to_thread(to_yaml, response.decode())
        return Response(response.status, encoded=text, content_type=YAML, headers=response.headers)
    if response.size > _INDENT_BELOW:
        return response
    text = await asyncio.to_thread(_indented, response)
    return Response(response.status, encoded=text, content_type=response.content_type, headers=response.headers)


def _indented(response: Response) -> bytes:
    return orjson.dumps(response.decode(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def compress(body: bytes) -> bytes:
    # For JSON the fastest level is within a fifth of the best. No mtime, so that equal bodies stay equal.
    return gzip.compress(body, compresslevel=1, mtime=0)


def accepts_gzip(headers: Mapping[str, str]) -> bool:
    return any(token.strip() == "gzip" for token in headers.get("accept-encoding", "").split(","))


def _is_raw(path: str) -> bool:
    """Whether the path names a subresource that is no object (log, exec and the like); only the core group has them."""
    segments = path.split("/")  # "", "api", "v1", "namespaces", namespace, plural, name, subresource
    place = 7 if segments[3:4] == ["namespaces"] else 5
    return segments[1] == "api" and len(segments) > place and segments[place] in _RAW
