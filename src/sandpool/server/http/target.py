"""The request target: its path, its query and the parameters in it."""

from __future__ import annotations

import re
from urllib.parse import unquote_plus

import httptools

from sandpool.kube.errors import BadRequest

_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


def split_target(target: bytes) -> tuple[str, str]:
    """The percent-encoded path and the raw query of a request target.

    Clients send an origin form (``/api?watch=1``); the absolute form is what a proxy gets, and legal.
    """
    if target[:1] != b"/":
        try:
            url = httptools.parse_url(target)
        except httptools.HttpParserInvalidURLError:
            raise BadRequest("the request target is not a URL path") from None
        target = (url.path or b"/") + (b"?" + url.query if url.query else b"")
        if target[:1] != b"/":
            raise BadRequest("the request target is not a URL path")
    try:
        path, _, query = target.decode("ascii").partition("?")
    except UnicodeDecodeError:
        raise BadRequest("the request target contains bytes that must be percent-encoded") from None
    if "%" in path and _BAD_ESCAPE.search(path):
        raise BadRequest("the request path contains an invalid percent-encoding")
    return path, query


def parse_query(raw: str) -> dict[str, str]:
    """Decode parameters; of a repeated one the first value wins, as in kube-apiserver."""
    parameters: dict[str, str] = {}
    if not raw:
        return parameters
    for part in raw.split("&"):
        if not part:
            continue
        name, _, value = part.partition("=")
        parameters.setdefault(_decode(name), _decode(value))
    return parameters


def _decode(text: str) -> str:
    return unquote_plus(text) if "%" in text or "+" in text else text
