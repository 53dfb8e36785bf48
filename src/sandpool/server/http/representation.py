"""The wire form of a response: compact or indented JSON, YAML, and gzip.

Handlers respond in compact JSON only. Every conversion costs milliseconds on a large list and is off the common path,
so it runs in a thread.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson
import yaml

from sandpool.kube.transport import JSON
from sandpool.server.request.messages import Response
from sandpool.server.request.negotiation import DISCOVERY_FORMS, OBJECT_FORMS, YAML, negotiate

_ANY_FORM = OBJECT_FORMS | DISCOVERY_FORMS
_ALWAYS_ACCEPTABLE = frozenset({"", JSON, "*/*", f"{JSON}, */*"})
# Subresources that return no API objects: their bytes are sent regardless of the Accept header.
_RAW = frozenset({"log", "proxy", "exec", "attach", "portforward"})
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


def rewrite(response: Response, wanted: Representation) -> tuple[bytes, str]:
    """The body and its content type, in a form other than compact JSON."""
    if not response.content_type.startswith(JSON):
        return response.encode(), response.content_type
    document = response.decode()
    if wanted.yaml:
        return _to_yaml(document), YAML
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE), response.content_type


def compress(body: bytes) -> bytes:
    # For JSON the fastest level is within a fifth of the best. No mtime, so that equal bodies stay equal.
    return gzip.compress(body, compresslevel=1, mtime=0)


def accepts_gzip(headers: Mapping[str, str]) -> bool:
    return any(token.strip() == "gzip" for token in headers.get("accept-encoding", "").split(","))


def _is_raw(path: str) -> bool:
    """Whether the path names a raw subresource; only the core group has them."""
    segments = path.split("/")  # "", "api", "v1", "namespaces", namespace, plural, name, subresource
    place = 7 if segments[3:4] == ["namespaces"] else 5
    return segments[1] == "api" and len(segments) > place and segments[place] in _RAW


def _to_yaml(document: Any) -> bytes:
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: bytes = yaml.dump(document, Dumper=dumper, encoding="utf-8", allow_unicode=True, width=80)
    return text
