from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import orjson
import pytest
import pytest_asyncio

from sandpool.engine.clock import SystemClock
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.router.authorization import ScopedTokenAuthorizer
from sandpool.router.destination import RequestRejected
from sandpool.router.metrics import RouterMetrics
from sandpool.router.router import Router
from sandpool.router.signed_urls import (
    UrlGrant,
    check_token,
    label_of,
    make_token,
    without_cookie,
    without_token,
)
from sandpool.router.tokens import ALL, TokenScope, TokenSigner, encode
from tests.router.test_router import Sandbox, sandbox

__all__ = ["sandbox"]

SIGNER = TokenSigner(b"0" * 32)
FAR = 1 << 40
TOKEN = SIGNER.make(TokenScope(ALL, (ALL,), FAR))
GRANT = UrlGrant("default", "box", 8888, FAR)
HOST = f"{GRANT.label}.localhost"


@pytest_asyncio.fixture
async def router(sandbox: Sandbox) -> AsyncIterator[Router]:
    clock = SystemClock()
    authorizer = ScopedTokenAuthorizer(SIGNER, clock)
    router = Router(
        sandbox,
        sandbox.dial,
        clock,
        RouterMetrics(MetricsRegistry()),
        authorizer=authorizer,
        trusts=lambda peer, local: True,  # as for the owner of a home, whose browser shows pages of sandboxes
    )
    await router.listen("127.0.0.1", 0)
    yield router
    await router.stop(0)


async def ask(router: Router, target: str, *lines: str, host: str = HOST, method: str = "GET") -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", router.ports[0])
    head = [f"{method} {target} HTTP/1.1", f"Host: {host}", *lines, "Connection: close", "", ""]
    writer.write("\r\n".join(head).encode())
    with suppress(ConnectionError):
        answer = await reader.read()
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()
    return int(answer.split(b" ", 2)[1]), answer


@pytest.mark.parametrize("port", [0, -1, 65536, 70000, 2**62])
def test_holder_of_a_token_names_no_port_that_does_not_exist(port: int) -> None:
    """Such a port would be a malformed request to the process that dials."""
    grant = GRANT._replace(port=port)
    with pytest.raises(RequestRejected, match="incomplete or was changed"):
        check_token(SIGNER, make_token(TOKEN, grant), grant.label, 0)


def test_every_port_of_every_sandbox_has_a_host_of_its_own() -> None:
    others = [GRANT, GRANT._replace(port=80), GRANT._replace(sandbox="x" * 63), GRANT._replace(namespace="other")]
    labels = {grant.label for grant in others}
    assert len(labels) == len(others)
    assert all(len(label) <= 63 and label_of(f"{label.upper()}.example:6490") == label for label in labels)
    for host in ("localhost:6490", "box-8888.localhost", "127.0.0.1", GRANT.label, ""):
        assert label_of(host) == ""


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (make_token(TOKEN, GRANT._replace(port=80)), "changed"),
        (make_token(TOKEN, GRANT._replace(namespace="other")), "changed"),
        (make_token(TOKEN, GRANT._replace(until=99)), "expired"),
        (make_token(SIGNER.make(TokenScope("default", ("box",), 99)), GRANT), "expired"),
        (make_token(SIGNER.make(TokenScope("default", ("other",), FAR)), GRANT), "changed"),
        (make_token(TokenSigner(b"1" * 32).make(TokenScope(ALL, (ALL,), FAR)), GRANT), "changed"),
        (TOKEN, "changed"),
        ("", "changed"),
        ("u1.é.é.é", "changed"),
    ],
)
def test_url_grants_its_port_for_its_time_and_nothing_else(token: str, reason: str) -> None:
    with pytest.raises(RequestRejected, match=reason):
        check_token(SIGNER, token, GRANT.label, 100)


def test_no_character_of_a_url_can_be_changed() -> None:
    token = make_token(TOKEN, GRANT)
    assert check_token(SIGNER, token, GRANT.label, 100) == GRANT
    for place in range(len(token) - 1):  # the last character has unused bits
        changed = token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :]
        with pytest.raises(RequestRejected):
            check_token(SIGNER, changed, GRANT.label, 100)


def test_restriction_cannot_be_replaced_without_the_token() -> None:
    version, payload, _, signature = make_token(TOKEN, GRANT._replace(sandbox="mine")).split(".")
    forged = f"{version}.{payload}.{encode(orjson.dumps(tuple(GRANT)))}.{signature}"
    with pytest.raises(RequestRejected, match="changed"):
        check_token(SIGNER, forged, GRANT.label, 100)


def test_token_of_a_url_is_no_token_of_the_router() -> None:
    _, payload, _, signature = make_token(TOKEN, GRANT).split(".")
    for text in (make_token(TOKEN, GRANT), f"v1.{payload}.{signature}"):
        with pytest.raises(RequestRejected):
            SIGNER.check(text, "default", "box", 100)
    for text in ("", "v1", "v1..", "u1.a.b", make_token(TOKEN, GRANT)):
        with pytest.raises(ValueError, match="no token"):
            make_token(text, GRANT)


def test_sandbox_sees_neither_parameter_nor_cookie() -> None:
    assert without_token(b"/a?x=1&sandpool-url=secret&y") == b"/a?x=1&y"
    assert without_token(b"/a?sandpool-url=secret") == b"/a"
    assert without_token(b"/a") == b"/a"
    assert without_token(b"/a?") == b"/a?"
    assert without_cookie(b"a=1; sandpool-url=secret; b=2") == b"a=1; b=2"
    assert without_cookie(b"sandpool-url=secret") == b""


async def test_program_opens_a_url(router: Router, sandbox: Sandbox) -> None:
    status, _ = await ask(router, f"/path?a=1&sandpool-url={make_token(TOKEN, GRANT)}", "X-Sandbox-ID: other")
    assert status == 200
    assert sandbox.seen[0].raw_path == "/path?a=1"
    assert (await ask(router, "/path"))[0] == 401


async def test_browser_gets_a_cookie_that_pages_cannot_read(router: Router, sandbox: Sandbox) -> None:
    token = make_token(TOKEN, GRANT)
    status, answer = await ask(router, f"//evil?sandpool-url={token}&a=1", "Accept: text/html,*/*")
    assert status == 303
    assert b"\r\nLocation: /evil?a=1\r\n" in answer
    assert f"\r\nSet-Cookie: sandpool-url={token}; Path=/; Max-Age=".encode() in answer
    assert b"; HttpOnly; SameSite=Lax\r\n" in answer
    assert sandbox.seen == []
    cookie = f"Cookie: own=1; sandpool-url=old; sandpool-url={token}"
    assert (await ask(router, "/healthz", cookie, f"Origin: http://{HOST}"))[0] == 200
    assert sandbox.seen[0].headers["Cookie"] == "own=1"
    assert sandbox.seen[0].raw_path == "/healthz"


async def test_page_of_a_sandbox_reaches_no_other_sandbox(router: Router, sandbox: Sandbox) -> None:
    cookie = f"Cookie: sandpool-url={make_token(TOKEN, GRANT)}"
    other = GRANT._replace(sandbox="other")
    # Its browser belongs to the owner of the home, whose connections need no token.
    assert (await ask(router, "/", "X-Sandbox-ID: box"))[0] == 401
    assert (await ask(router, "/", cookie, host=f"{other.label}.localhost"))[0] == 401
    assert (await ask(router, "/", cookie, f"Origin: http://{other.label}.localhost", method="POST"))[0] == 403
    assert (await ask(router, "/", cookie, "Origin: null", method="POST"))[0] == 403
    assert (await ask(router, "/", "X-Sandbox-ID: box", f"Origin: http://{HOST}", host="127.0.0.1"))[0] == 403
    assert (await ask(router, "/", "X-Sandbox-ID: box", "Origin: http://[", host="127.0.0.1"))[0] == 403
    assert sandbox.seen == []
    assert (await ask(router, "/", "X-Sandbox-ID: box", host="127.0.0.1"))[0] == 200


@pytest.mark.parametrize("site", ["same-site", "cross-site"])
async def test_page_of_another_site_sends_nothing_with_the_cookie(router: Router, sandbox: Sandbox, site: str) -> None:
    """Below a DNS name of your own, the pages of two sandboxes are of the same site to a browser."""
    token = make_token(TOKEN, GRANT)
    cookie, fetched = f"Cookie: sandpool-url={token}", f"Sec-Fetch-Site: {site}"
    for mode, destination in (("no-cors", "image"), ("no-cors", "script"), ("navigate", "iframe"), ("cors", "empty")):
        lines = (cookie, fetched, f"Sec-Fetch-Mode: {mode}", f"Sec-Fetch-Dest: {destination}")
        assert (await ask(router, "/delete", *lines))[0] == 403
    assert (await ask(router, "/", cookie, fetched))[0] == 403
    opened = ("Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document")
    assert (await ask(router, "/", cookie, fetched, *opened, method="POST"))[0] == 403
    assert sandbox.seen == []
    assert (await ask(router, "/", cookie, fetched, *opened))[0] == 200
    assert (await ask(router, f"/?sandpool-url={token}", fetched, "Sec-Fetch-Mode: cors"))[0] == 200, "it has the URL"


@pytest.mark.parametrize("site", ["same-origin", "none"])
async def test_page_of_a_sandbox_reaches_its_own_server(router: Router, site: str) -> None:
    cookie = f"Cookie: sandpool-url={make_token(TOKEN, GRANT)}"
    assert (await ask(router, "/a", cookie, f"Sec-Fetch-Site: {site}", "Sec-Fetch-Mode: no-cors"))[0] == 200


async def test_wrong_url_is_refused_before_a_cookie_is_set(router: Router) -> None:
    wrong = make_token(TOKEN, GRANT._replace(port=80))
    status, answer = await ask(router, f"/?sandpool-url={wrong}", "Accept: text/html")
    assert (status, b"Set-Cookie" in answer) == (401, False)


async def test_router_without_a_secret_serves_no_urls(sandbox: Sandbox) -> None:
    router = Router(sandbox, sandbox.dial, SystemClock(), RouterMetrics(MetricsRegistry()))
    await router.listen("127.0.0.1", 0)
    assert (await ask(router, f"/?sandpool-url={make_token(TOKEN, GRANT)}"))[0] == 403
    await router.stop(0)
