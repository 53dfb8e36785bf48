"""What the dashboard refuses: other names, other origins, no session, half a session, and changes when read-only."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from sandpool.dashboard.access import one_time_code
from sandpool.dashboard.guard import SESSION_HEADER
from sandpool.engine.clock import SystemClock
from tests.dashboard.conftest import TOKEN, Served, Visitor


async def status_of(served: Served, path: str = "/", method: str = "GET", **headers: str) -> int:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, served.url + path, headers=given, allow_redirects=False) as response,
    ):
        return response.status


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "evil.example:6492", "0.0.0.0", "[", "a@b"])
async def test_names_of_others_are_refused(served: Served, host: str) -> None:
    """A page of the internet that points its own name at 127.0.0.1 gets nothing, whatever it asks for."""
    for path in ("/", "/login", "/api/live", f"/static/{served.dashboard.pages.version}/app.js"):
        assert await status_of(served, path, Host=host) == 421


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:9999", "[::1]:1", "LOCALHOST:80"])
async def test_names_of_the_loopback_interface_are_served_at_any_port(served: Served, host: str) -> None:
    """An SSH tunnel has another port on its other side."""
    assert await status_of(served, "/login", Host=host) == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://localhost:{port}"},  # the Host is 127.0.0.1
        {"Origin": "{url}", "Sec_Fetch_Site": "cross-site"},
        {"Origin": "{url}", "Sec_Fetch_Site": "same-site"},
    ],
)
async def test_changes_from_other_origins_are_refused(visitor: Visitor, headers: dict[str, str]) -> None:
    """Also with the cookie and the secret of a session."""
    port = visitor.url.rpartition(":")[2]
    given = {name.replace("_", "-"): value.format(url=visitor.url, port=port) for name, value in headers.items()}
    given[SESSION_HEADER] = visitor.secret
    async with visitor.session.post(f"{visitor.url}/api/claims", json={}, headers=given) as response:
        assert response.status == 403
        assert "another site" in (await response.json())["error"]


async def test_streams_and_websockets_from_other_origins_are_refused(visitor: Visitor) -> None:
    own = {SESSION_HEADER: visitor.secret}
    async with visitor.session.get(
        f"{visitor.url}/api/live", headers={**own, "Sec-Fetch-Site": "cross-site"}
    ) as answer:
        assert answer.status == 403
    for origin in ({"Origin": "https://evil.example"}, {}):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await visitor.session.ws_connect(
                f"{visitor.url}/api/sandboxes/default/box/terminal",
                headers=origin,
                protocols=("sandpool", f"session.{visitor.secret}"),
            )
        assert refused.value.status == 403


async def test_pages_lead_to_the_login_without_a_session(served: Served) -> None:
    async with aiohttp.ClientSession() as session:
        for path in ("/", "/pools", "/claims/default/x", "/sandboxes/default/x"):
            async with session.get(served.url + path, allow_redirects=False) as response:
                assert (response.status, response.headers["Location"]) == (303, "/login")


async def test_the_api_needs_a_session_and_its_second_secret(served: Served, visitor: Visitor) -> None:
    for path in ("/api/live", "/api/why/pool/default/x", "/api/sandboxes/default/x/logs"):
        assert await status_of(served, path) == 401
        assert (await visitor.call("GET", path, **{SESSION_HEADER: "guess"}))[0] == 403
        async with visitor.session.get(
            served.url + path
        ) as response:  # a cookie alone, as servers on other ports get it
            assert response.status == 403
    assert await status_of(served, "/api/claims", "POST", Origin=served.url) == 401


async def test_a_one_time_code_begins_one_session(served: Served) -> None:
    code = one_time_code(TOKEN, SystemClock())
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        statuses = []
        for _ in range(2):
            async with session.post(
                f"{served.url}/api/login", json={"code": code}, headers={"Origin": served.url}
            ) as response:
                statuses.append(response.status)
                answer = await response.json()
        assert statuses == [200, 401]
        assert "used already" in answer["error"]


async def test_reading_the_login_page_uses_up_nothing(served: Served) -> None:
    """Programs that fetch links before their users do cannot log in: they do not send the fragment with the code."""
    assert await status_of(served, "/login?code=" + one_time_code(TOKEN, SystemClock())) == 200
    assert len(served.dashboard.guard.sessions) == 0


async def test_the_cookie_is_for_this_host_and_for_no_script(served: Served) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{served.url}/api/login", json={"code": TOKEN}, headers={"Origin": served.url}) as response,
    ):
        (cookie,) = response.headers.getall("Set-Cookie")
    attributes = {part.strip() for part in cookie.split(";")[1:]}
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= attributes
    assert not any(each.startswith("Domain") for each in attributes)
    assert cookie.startswith(f"sandpool-dashboard-{served.dashboard.port}=")


async def test_a_session_that_was_logged_out_is_over(served: Served, visitor: Visitor) -> None:
    await visitor.get("/api/trace/default/x")
    cookies = {each.key: each.value for each in visitor.session.cookie_jar}
    await visitor.does("POST", "/api/logout")
    headers = {SESSION_HEADER: visitor.secret}
    async with (
        aiohttp.ClientSession(cookies=cookies, cookie_jar=aiohttp.CookieJar(unsafe=True)) as again,
        again.get(f"{served.url}/api/trace/default/x", headers=headers) as response,
    ):
        assert response.status == 401


async def test_every_answer_has_a_strict_policy(served: Served, visitor: Visitor) -> None:
    paths = ["/", "/login", "/nowhere", "/api/trace/default/x", f"/static/{served.dashboard.pages.version}/app.js"]
    for path in paths:
        async with visitor.session.get(served.url + path, headers={SESSION_HEADER: visitor.secret}) as response:
            policy = response.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert response.headers["X-Content-Type-Options"] == "nosniff"
            assert response.headers["Referrer-Policy"] == "no-referrer"
            kept = "immutable" in response.headers["Cache-Control"]
            assert kept == path.startswith("/static/")


CHANGES = [
    ("POST", "/api/claims", {"namespace": "default", "pool": "p", "minutes": 0}),
    ("DELETE", "/api/claims/default/x", {"uid": ""}),
    ("POST", "/api/sandboxes/default/x/mode", {"suspended": True}),
    ("POST", "/api/sandboxes/default/x/run", {"code": "", "language": "sh"}),
    ("PUT", "/api/sandboxes/default/x/file?path=/x", None),
    ("POST", "/api/sandboxes/default/x/ports/80", {}),
    ("GET", "/api/sandboxes/default/x/terminal", None),
    ("POST", "/api/pools/default/x/scale", {"replicas": 1}),
    ("POST", "/api/pools/default/x/rollout", {}),
    ("POST", "/api/pools/default/x/undo", {}),
]


async def test_a_read_only_dashboard_changes_nothing(read_only: Served) -> None:
    async with read_only.client() as visitor:
        for method, path, content in CHANGES:
            status, answer = await visitor.call(method, path, content)
            assert (status, answer["error"]) == (403, "this dashboard is read-only"), path
        assert "&quot;readOnly&quot;: true" in visitor.page
    tested = {(method, path.partition("?")[0]) for method, path, _ in CHANGES}
    routes = read_only.dashboard._changing()
    assert len(tested) == len(routes)


@pytest.mark.parametrize("content", [b"[]", b"{", b"\xff", b'"x"', b"null"])
async def test_bodies_that_are_no_objects_are_refused(visitor: Visitor, content: bytes) -> None:
    headers = {"Origin": visitor.url, SESSION_HEADER: visitor.secret}
    for path in ("/api/claims", "/api/login"):
        async with visitor.session.post(visitor.url + path, data=content, headers=headers) as response:
            assert response.status == 400


@pytest.mark.parametrize("name", ["..%2f..%2fnodes", "%2e%2e", "A", "a%00", "a%20b", "x" * 300])
async def test_paths_cannot_lead_out_of_a_kind(visitor: Visitor, name: str) -> None:
    for path in (f"/api/why/pool/default/{name}", f"/api/why/pool/{name}/x", f"/api/sandboxes/default/{name}/activity"):
        status, _ = await visitor.call("GET", path)
        assert status in (400, 404), path


async def test_silent_connections_make_room_and_browsers_with_a_session_stay(served: Served, visitor: Visitor) -> None:
    gate = served.dashboard._gate
    assert gate is not None
    (known,) = [each for each in gate._connections if not each.is_stranger]
    address = ("127.0.0.1", served.dashboard.port)
    silent = [await asyncio.open_connection(*address) for _ in range(gate.limits.strangers_per_address + 1)]
    assert await silent[0][0].read() == b"", "the oldest one is closed"
    await visitor.get("/api/trace/default/x")
    assert known in gate._connections, "the connection of the session is the same"
    for _, writer in silent:
        writer.close()


async def test_long_heads_are_refused_before_a_session_is_looked_for(served: Served) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.dashboard.port)
    writer.write((b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 20_000)[: (64 << 10) + 1])
    assert (await reader.readline()).split()[1] in (b"400", b"431")
    writer.close()
