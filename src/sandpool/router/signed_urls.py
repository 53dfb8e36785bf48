"""URLs of servers in sandboxes that a browser can open: they name one port of one sandbox and expire.

A URL carries a restricted token, ``u1.<payload of a token>.<restriction>.<signature>``. The signature's key is the
signature of the token. Holders of the token know it, and only the router can compute it again from the
payload. So the holder of any token makes URLs of what it grants, without asking the router, and a URL reveals no token
and cannot be widened.

Every port of every sandbox has a host name of its own, such as ``box-8000-<hash>.localhost``. To a browser they are
different sites, so a page of one sandbox cannot read another's. The router serves such a host for URLs only: headers
that name a sandbox, and trust in the connection, mean nothing there, because a page of the sandbox may have sent them.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import orjson

from sandpool.router.destination import RequestRejected
from sandpool.router.tokens import TokenSigner, decode, encode

#: Of the query of a URL, and the name of the cookie that replaces it.
PARAMETER: Final = "sandpool-url"
_VERSION: Final = "u1"
_TOKEN_VERSION: Final = "v1"
_DOMAIN: Final = b"sandpool.dev/url/v1."
_LONGEST_NAME: Final = 40
_HOST: Final = re.compile(r"([a-z0-9-]{1,40}-[0-9]{1,5}-[0-9a-f]{16})\.")


class UrlGrant(NamedTuple):
    """The grant of a URL: a port of a sandbox, before ``until`` in seconds since the epoch."""

    namespace: str
    sandbox: str
    port: int
    until: int

    @property
    def label(self) -> str:
        """The first label of its host name."""
        hashed = sha256(f"{self.namespace}/{self.sandbox}:{self.port}".encode()).hexdigest()[:16]
        return f"{self.sandbox[:_LONGEST_NAME]}-{self.port}-{hashed}"


def label_of(host: str) -> str:
    """The label of a host name of URLs, empty for any other host."""
    match = _HOST.match(host.lower())
    return match[1] if match is not None else ""


def host_of(origin: str) -> str:
    """The host and port of an Origin header, empty for an opaque or malformed one."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def make_token(token: str, grant: UrlGrant) -> str:
    """Restrict a token of the router to what a URL grants. Raises ``ValueError`` for what is no token."""
    version, _, rest = token.strip().partition(".")
    payload, _, signature = rest.partition(".")
    key = decode(signature)
    if version != _TOKEN_VERSION or not payload or not key:
        raise ValueError("this is no token of the router")
    restriction = encode(orjson.dumps(tuple(grant)))
    return f"{_VERSION}.{payload}.{restriction}.{encode(_sign(key, payload, restriction))}"


def check_token(signer: TokenSigner, text: str, label: str, now: float) -> UrlGrant:
    """Return what a URL with this token and host grants. Raises ``RequestRejected``."""
    grant = _read(signer, text)
    if grant is None or grant.label != label:
        raise RequestRejected(401, "The URL is incomplete or was changed.")
    if now >= grant.until:
        raise RequestRejected(401, "The URL has expired.")
    return grant


def tokens_of(target: bytes, headers: Mapping[str, str]) -> Iterator[str]:
    """The tokens of a request, in its query and its cookies."""
    for pair in target.partition(b"?")[2].split(b"&"):
        name, _, value = pair.partition(b"=")
        if name == PARAMETER.encode():
            yield value.decode("latin-1")
    for cookie in headers.get("cookie", "").split(";"):
        key, _, token = cookie.strip().partition("=")
        if key == PARAMETER:
            yield token


def check_site(method: bytes, headers: Mapping[str, str]) -> None:
    """Raise ``RequestRejected`` if the page of another site made the browser send a request with its cookie.

    A user may follow a link, so navigation of the whole window is allowed. Below a DNS name of your own the pages of
    two sandboxes are of one site, for which ``SameSite`` does nothing. Browsers send these headers over TLS and to
    ``*.localhost``."""
    if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
        return
    is_navigation = (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) == ("navigate", "document")
    if not is_navigation or method not in (b"GET", b"HEAD"):
        raise RequestRejected(403, "Requests of web pages from other sites are not accepted.")


def has_token(target: bytes) -> bool:
    """Whether the query of a request has a token."""
    return next(tokens_of(target, {}), None) is not None


def without_token(target: bytes) -> bytes:
    """The target of a request as the sandbox sees it."""
    path, mark, query = target.partition(b"?")
    kept = [pair for pair in query.split(b"&") if pair.partition(b"=")[0] != PARAMETER.encode()]
    return path + mark + b"&".join(kept) if kept else path


def without_cookie(cookies: bytes) -> bytes:
    """The Cookie header as the sandbox sees it."""
    pairs = [pair.strip() for pair in cookies.split(b";")]
    return b"; ".join(pair for pair in pairs if pair.partition(b"=")[0] != PARAMETER.encode())


def entrance(target: bytes, token: str, seconds: int) -> bytes:
    """The response that moves the token from the address of a page to a cookie, so that it is neither in the history
    of the browser nor readable for the page."""
    location = b"/" + without_token(target).lstrip(b"/")  # "//name" would lead to another host
    return (
        b"HTTP/1.1 303 See Other\r\nLocation: %b\r\n"
        b"Set-Cookie: %b=%b; Path=/; Max-Age=%d; HttpOnly; SameSite=Lax\r\n"
        b"Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nContent-Length: 0\r\n"
    ) % (location, PARAMETER.encode(), token.encode("latin-1"), seconds)


def _read(signer: TokenSigner, text: str) -> UrlGrant | None:
    version, _, rest = text.partition(".")
    payload, _, rest = rest.partition(".")
    restriction, _, signature = rest.partition(".")
    given, key = decode(signature), signer.sign(payload)
    if version != _VERSION or given is None or not hmac.compare_digest(given, _sign(key, payload, restriction)):
        return None
    scope = signer.read(f"{_TOKEN_VERSION}.{payload}.{encode(key)}")
    try:
        namespace, sandbox, port, until = orjson.loads(decode(restriction) or b"")
        grant = UrlGrant(str(namespace), str(sandbox), int(port), int(until))
    except (ValueError, TypeError):
        return None
    if scope is None or not scope.grants(grant.namespace, grant.sandbox):
        return None
    if not 0 < grant.port < 1 << 16:  # the holder of the token chose it
        return None
    return grant._replace(until=min(grant.until, scope.until))


def _sign(key: bytes, payload: str, restriction: str) -> bytes:
    return hmac.digest(key, _DOMAIN + f"{payload}.{restriction}".encode("utf-8", "replace"), "sha256")
