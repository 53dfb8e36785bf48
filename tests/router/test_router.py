from __future__ import annotations

import asyncio
import io
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from sandpool.engine.clock import SystemClock
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.router.authorization import ScopedTokenAuthorizer
from sandpool.router.destination import Destination, RequestRejected
from sandpool.router.metrics import RouterMetrics
from sandpool.router.router import Resolver, Router, RouterOptions
from sandpool.router.targets import Target
from sandpool.router.tokens import TokenScope, TokenSigner
from sandpool.router.upstream import Dial

BOX = {"X-Sandbox-ID": "box"}
FAR = 1 << 40  # in seconds since the epoch
NOTHING_LISTENS = (
    "Could not connect to the backend sandbox: box. Nothing in it listens on port 9: start a server there that binds "
    "to 0.0.0.0, or name its port in the header X-Sandbox-Port. Commands and files are served on port 8888 unless the "
    'pod template has the annotation sandpool.dev/inject-runtime: "false".'
)
TARGET = Target("default", "box", "uid", "10.231.0.9")


class Sandbox:
    """A server in a sandbox that a test writes. ``seen`` are the requests that have reached it."""

    def __init__(self) -> None:
        self.seen: list[web.BaseRequest] = []
        self.answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]] = self.echo
        self.port = 0
        self.dialled = 0

    async def echo(self, request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=await request.read(), headers={"X-Method": request.method})

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.seen.append(request)
        return await self.answer(request)

    async def dial(self, target: Target, port: int) -> socket.socket:
        assert target == TARGET
        self.dialled += 1
        if port != 8888:
            raise ConnectionRefusedError(111, "Connection refused")
        sock = socket.socket()
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        return sock

    def find(self, wanted: Destination) -> Target:
        if wanted.sandbox != "box":
            raise RequestRejected(404, f"Sandbox {wanted.sandbox} not found in namespace {wanted.namespace}.")
        return TARGET


@pytest_asyncio.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    sandbox = Sandbox()
    server = web.Server(sandbox.handle)
    runner = web.ServerRunner(server, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    sandbox.port = runner.addresses[0][1]
    yield sandbox
    await runner.cleanup()


@pytest_asyncio.fixture
async def router(sandbox: Sandbox) -> AsyncIterator[Router]:
    router = Router(sandbox, sandbox.dial, SystemClock(), RouterMetrics(MetricsRegistry()))
    await router.listen("127.0.0.1", 0)
    yield router
    await router.stop(0)


@pytest_asyncio.fixture
async def session(router: Router) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(f"http://127.0.0.1:{router.ports[0]}", headers=BOX) as session:
        yield session


async def raw(router: Router, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", router.ports[0])
    writer.write(data)
    answer = b""
    async with asyncio.timeout(20):
        with suppress(ConnectionError):
            answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_every_method_is_forwarded(session: aiohttp.ClientSession, method: str) -> None:
    async with session.request(method, "/path", data=b"content" if method != "GET" else None) as answer:
        assert (answer.status, answer.headers["X-Method"]) == (200, method)
        assert await answer.read() == (b"" if method == "GET" else b"content")


async def test_response_to_head_has_no_body(session: aiohttp.ClientSession, sandbox: Sandbox) -> None:
    for _ in range(3):
        async with session.head("/") as answer:
            assert answer.status == 200


async def test_path_and_query_arrive_as_sent(router: Router, sandbox: Sandbox) -> None:
    path = b"/download/a%2Fb%20c//../d?x=%2F&y"
    await raw(router, b"GET %b HTTP/1.1\r\nHost: localhost\r\nX-Sandbox-ID: box\r\nConnection: close\r\n\r\n" % path)
    assert sandbox.seen[0].raw_path == path.decode()


async def test_router_headers_are_not_forwarded(session: aiohttp.ClientSession, sandbox: Sandbox) -> None:
    headers = {
        "Authorization": "Bearer secret",
        "X-Sandbox-Port": "8888",
        "X-Sandbox-Anything": "x",
        "X-Forwarded-For": "6.6.6.6",
        "Connection": "keep-alive, X-Private",
        "X-Private": "x",
        "X-Kept": "kept",
        "Cookie": "a=b",
    }
    async with session.get("/", headers=headers):
        pass
    seen = sandbox.seen[0].headers
    assert not [name for name in seen if name.lower().startswith(("x-sandbox", "authorization", "x-private"))]
    assert (seen["X-Kept"], seen["Cookie"], seen["X-Forwarded-For"]) == ("kept", "a=b", "127.0.0.1")
    assert seen["Host"] == "10.231.0.9:8888"


async def test_connections_are_reused(session: aiohttp.ClientSession, sandbox: Sandbox) -> None:
    for _ in range(20):
        async with session.get("/") as answer:
            await answer.read()
    assert sandbox.dialled == 1


async def test_body_without_a_length_is_forwarded(session: aiohttp.ClientSession, sandbox: Sandbox) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"x" * 10_000

    async with session.post("/", data=pieces()) as answer:
        assert await answer.read() == b"x" * 1_000_000


async def test_server_sent_events_are_not_delayed(session: aiohttp.ClientSession, sandbox: Sandbox) -> None:
    go = asyncio.Event()

    async def stream(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: 1\n\n")
        await go.wait()
        await response.write(b"data: 2\n\n")
        return response

    sandbox.answer = stream
    async with session.get("/") as answer:
        assert await answer.content.readany() == b"data: 1\n\n"
        go.set()
        assert await answer.content.read() == b"data: 2\n\n"


async def test_large_bodies_are_streamed_both_ways(session: aiohttp.ClientSession, sandbox: Sandbox) -> None:
    content = bytes(20_000_000)

    async def count(request: web.BaseRequest) -> web.StreamResponse:
        size = 0
        async for piece in request.content.iter_any():
            size += len(piece)
        return web.Response(body=content, headers={"X-Size": str(size)})

    sandbox.answer = count
    async with session.post("/", data=io.BytesIO(content)) as answer:
        assert answer.headers["X-Size"] == "20000000"
        assert len(await answer.read()) == 20_000_000


async def test_slow_request_body_is_forwarded_as_it_arrives(router: Router, sandbox: Sandbox) -> None:
    arrived: asyncio.Queue[bytes] = asyncio.Queue()

    async def listen(request: web.BaseRequest) -> web.StreamResponse:
        async for piece in request.content.iter_any():
            arrived.put_nowait(piece)
        return web.Response(body=b"done")

    sandbox.answer = listen
    reader, writer = await asyncio.open_connection("127.0.0.1", router.ports[0])
    writer.write(b"POST / HTTP/1.1\r\nX-Sandbox-ID: box\r\nContent-Length: 3\r\nConnection: close\r\n\r\n")
    async with asyncio.timeout(20):
        for letter in (b"a", b"b", b"c"):
            writer.write(letter)
            assert await arrived.get() == letter
        assert (await reader.read()).endswith(b"\r\n\r\ndone")
    writer.close()


async def test_slow_reader_stops_the_sandbox(router: Router, sandbox: Sandbox) -> None:
    """Neither does it get into our memory."""
    piece, enough = bytes(1 << 20), 64
    sent = 0

    async def flood(request: web.BaseRequest) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(enough):
            await response.write(piece)
            sent += 1
        return response

    sandbox.answer = flood
    # A small room for what has come and was not read.
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    sock.connect(("127.0.0.1", router.ports[0]))
    reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 16)
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Sandbox-ID: box\r\nConnection: close\r\n\r\n")
    stalled = 0
    async with asyncio.timeout(60):
        while stalled < 20:
            before = sent
            await asyncio.sleep(0.05)
            stalled = stalled + 1 if sent == before and sandbox.seen else 0
        assert sent < enough / 2, "the sandbox kept writing although the client does not read"
        size = 0
        while data := await reader.read(1 << 20):
            size += len(data)
    assert size > enough << 20
    writer.close()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ("Host: localhost:8080", 200),
        ("Host: 127.0.0.1\r\nOrigin: http://localhost:3000", 200),
        ("Host: evil.example", 403),
        ("Host: localhost\r\nOrigin: http://evil.example", 403),
        ("Host: localhost\r\nOrigin: null", 403),
    ],
)
async def test_requests_of_pages_of_other_sites_do_not_reach_a_sandbox(
    router: Router, sandbox: Sandbox, headers: str, status: int
) -> None:
    for head in (f"GET / HTTP/1.1\r\n{headers}", f"GET / HTTP/1.1\r\n{headers}\r\nUpgrade: websocket"):
        answer = await raw(router, f"{head}\r\nX-Sandbox-ID: box\r\nConnection: close\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 %d " % status), answer
    assert len(sandbox.seen) == (2 if status == 200 else 0)


async def test_websocket_is_forwarded(session: aiohttp.ClientSession, sandbox: Sandbox) -> None:
    async def echo(request: web.BaseRequest) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=("chat",))
        await socket.prepare(request)
        async for message in socket:
            await socket.send_str(f"{message.data}!")
        return socket

    sandbox.answer = echo
    async with session.ws_connect("/", protocols=("chat",), origin="http://localhost:3000") as socket:
        for number in range(10):
            await socket.send_str(f"hello {number}")
            assert await socket.receive_str() == f"hello {number}!"
        assert socket.protocol == "chat"
    assert "Origin" not in sandbox.seen[0].headers


@pytest.mark.parametrize(
    ("headers", "status", "detail"),
    [
        ({"X-Sandbox-ID": "other"}, 404, "Sandbox other not found in namespace default."),
        ({"X-Sandbox-ID": "A"}, 400, "Invalid sandbox ID format."),
        ({"X-Sandbox-Port": "9"}, 502, NOTHING_LISTENS),
    ],
)
async def test_unroutable_request_is_answered_at_once(
    session: aiohttp.ClientSession, sandbox: Sandbox, headers: dict[str, str], status: int, detail: str
) -> None:
    async with session.post("/", data=b"x" * 1000, headers=headers) as answer:
        assert (answer.status, await answer.json()) == (status, {"detail": detail})
    assert sandbox.seen == []


async def test_health_is_ok(router: Router) -> None:
    answer = await raw(router, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert answer.endswith(b'\r\n\r\n{"status":"ok"}')


async def test_slow_sandbox_is_answered_with_504(session: aiohttp.ClientSession, sandbox: Sandbox) -> None:
    gone = asyncio.Event()

    async def never(request: web.BaseRequest) -> web.StreamResponse:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            gone.set()
        raise AssertionError

    sandbox.answer = never
    async with session.get("/", headers={"X-Sandbox-Timeout": "0.2"}) as answer:
        assert (answer.status, await answer.json()) == (504, {"detail": "The sandbox did not answer in time."})


async def test_disconnect_of_the_client_reaches_the_sandbox(router: Router, sandbox: Sandbox) -> None:
    arrived, lost = asyncio.Event(), asyncio.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        arrived.set()
        with suppress(ConnectionError):
            await reader.read()
        lost.set()
        writer.close()

    server = await asyncio.start_server(wait, "127.0.0.1", 0)
    sandbox.port = server.sockets[0].getsockname()[1]
    _, writer = await asyncio.open_connection("127.0.0.1", router.ports[0])
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Sandbox-ID: box\r\n\r\n")
    async with asyncio.timeout(20):
        await arrived.wait()
        writer.close()
        await lost.wait()
    server.close()


async def test_aborted_response_is_aborted_for_the_client(router: Router, sandbox: Sandbox) -> None:
    async def half(request: web.BaseRequest) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        request.transport.close()
        return web.Response()

    sandbox.answer = half
    answer = await raw(router, b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Sandbox-ID: box\r\n\r\n")
    assert answer.endswith(b"\r\n\r\nhalf")


async def test_response_without_a_length_ends_with_the_connection(router: Router, sandbox: Sandbox) -> None:
    async def old(request: web.BaseRequest) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.write(b"HTTP/1.0 200 OK\r\n\r\nall of it")
        request.transport.close()
        return web.Response()

    sandbox.answer = old
    answer = await raw(router, b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Sandbox-ID: box\r\nConnection: close\r\n\r\n")
    assert answer.endswith(b"\r\n\r\n9\r\nall of it\r\n0\r\n\r\n")


async def test_connection_that_died_while_idle_is_replaced(session: aiohttp.ClientSession, sandbox: Sandbox) -> None:
    async with session.get("/") as answer:
        await answer.read()
    assert sandbox.seen[0].transport is not None
    sandbox.seen[0].transport.abort()
    async with session.get("/") as answer:
        assert answer.status == 200


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"hello\r\n\r\n", 400),
        (
            b"GET http://169.254.169.254/ HTTP/1.1\r\nX-Sandbox-ID: box\r\nConnection: close\r\n\r\n",
            400,
        ),
        (b"CONNECT 10.0.0.1:22 HTTP/1.1\r\nHost: localhost\r\nX-Sandbox-ID: box\r\nConnection: close\r\n\r\n", 405),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Sandbox-ID: box\r\nX: " + b"y" * 100_000 + b"\r\n\r\n", 431),
        (
            b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Sandbox-ID: box\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            400,
        ),
        (b"POST / HTTP/1.1\r\nX-Sandbox-ID: box\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc", 400),
    ],
)
async def test_malformed_request_reaches_no_sandbox(router: Router, sandbox: Sandbox, data: bytes, status: int) -> None:
    answer = await raw(router, data)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert sandbox.seen == []


async def test_pipelined_requests_are_answered_in_order(router: Router, sandbox: Sandbox) -> None:
    one = b"POST /%d HTTP/1.1\r\nHost: localhost\r\nX-Sandbox-ID: box\r\nContent-Length: 1\r\n\r\n%d"
    last = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answer = await raw(router, b"".join(one % (number, number) for number in range(5)) + last)
    bodies = [part.split(b"\r\n\r\n", 1)[1][:1] for part in answer.split(b"HTTP/1.1 200")[1:6]]
    assert bodies == [b"0", b"1", b"2", b"3", b"4"]


async def test_token_opens_one_sandbox(sandbox: Sandbox) -> None:
    tokens = TokenSigner(b"x" * 32)

    guard = ScopedTokenAuthorizer(tokens, SystemClock())
    router = Router(sandbox, sandbox.dial, SystemClock(), RouterMetrics(MetricsRegistry()), authorizer=guard)
    await router.listen("127.0.0.1", 0)
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{router.ports[0]}", headers=BOX) as session:
            for token, status in (
                ("", 401),
                ("nonsense", 401),
                (TokenSigner(b"y" * 32).make(TokenScope("default", ("box",), FAR)), 401),
                (tokens.make(TokenScope("default", ("box",), 1)), 401),  # of long ago
                (tokens.make(TokenScope("default", ("other",), FAR)), 403),
                (tokens.make(TokenScope("other", ("box",), FAR)), 403),
                (tokens.make(TokenScope("default", ("box",), FAR)), 200),
            ):
                async with session.get("/", headers={"Authorization": f"Bearer {token}"}) as answer:
                    assert answer.status == status
            assert len(sandbox.seen) == 1
    finally:
        await router.stop(0)


def retrying(targets: Resolver, dial: Dial, times: int) -> Router:
    options = RouterOptions(retry_delays=(0.0,) * times)
    return Router(targets, dial, SystemClock(), RouterMetrics(MetricsRegistry()), options=options)


async def test_connection_is_retried_until_the_sandbox_listens(sandbox: Sandbox) -> None:
    tries = 0

    async def dial(target: Target, port: int) -> socket.socket:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise ConnectionRefusedError(111, "Connection refused")
        return await sandbox.dial(target, port)

    router = retrying(sandbox, dial, 2)
    await router.listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{router.ports[0]}"
    async with aiohttp.ClientSession(url, headers=BOX) as session, session.post("/", data=b"once") as answer:
        assert await answer.read() == b"once"
    await router.stop(0)
    assert (tries, len(sandbox.seen)) == (3, 1)


async def test_sandbox_deleted_during_retries_is_not_found(sandbox: Sandbox) -> None:
    class Going(Sandbox):
        found = 0

        def find(self, wanted: Destination) -> Target:
            self.found += 1
            if self.found > 1:
                raise RequestRejected(404, "It is gone.")
            return TARGET

    router = retrying(Going(), sandbox.dial, 100)
    await router.listen("127.0.0.1", 0)
    url, headers = f"http://127.0.0.1:{router.ports[0]}", {**BOX, "X-Sandbox-Port": "9"}
    async with aiohttp.ClientSession(url, headers=headers) as session, session.get("/") as answer:
        assert (answer.status, await answer.json()) == (404, {"detail": "It is gone."})
    await router.stop(0)


async def test_redirect_of_a_sandbox_is_not_followed(session: aiohttp.ClientSession, sandbox: Sandbox) -> None:
    async def elsewhere(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": "http://169.254.169.254/secrets"})

    sandbox.answer = elsewhere
    async with session.get("/", allow_redirects=False) as answer:
        assert (answer.status, answer.headers["Location"]) == (302, "http://169.254.169.254/secrets")
    assert len(sandbox.seen) == 1


async def test_no_request_is_lost_under_load(router: Router, sandbox: Sandbox) -> None:
    """Ten thousand requests, of which two hundred are under way at once: the first ones wait for each other."""
    together = asyncio.Barrier(200)

    async def meet(request: web.BaseRequest) -> web.StreamResponse:
        if len(sandbox.seen) <= 200:
            await together.wait()
        return await sandbox.echo(request)

    async def ask(number: int) -> None:
        async with limit, session.post("/", data=str(number).encode()) as answer:
            assert await answer.read() == str(number).encode()

    sandbox.answer = meet
    limit = asyncio.Semaphore(200)
    url, connector = f"http://127.0.0.1:{router.ports[0]}", aiohttp.TCPConnector(limit=200)
    async with aiohttp.ClientSession(url, headers=BOX, connector=connector) as session:
        await asyncio.gather(*map(ask, range(10_000)))
    assert len(sandbox.seen) == 10_000


async def test_rest_of_a_request_is_not_parsed_as_the_next(router: Router, sandbox: Sandbox) -> None:
    """A sandbox may answer before it has heard everything. It still waits for the rest, on that connection."""
    heard: list[bytes] = []

    async def hasty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                heard.append(head.split(b" ", 2)[1])
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                if b"Content-Length: 100" in head:
                    await reader.readexactly(100)
        writer.close()

    server = await asyncio.start_server(hasty, "127.0.0.1", 0)
    sandbox.port = server.sockets[0].getsockname()[1]
    first = await raw(router, b"POST /1 HTTP/1.1\r\nX-Sandbox-ID: box\r\nContent-Length: 100\r\n\r\npart")
    assert first.startswith(b"HTTP/1.1 200 ")
    second = await raw(router, b"GET /2 HTTP/1.1\r\nHost: localhost\r\nX-Sandbox-ID: box\r\nConnection: close\r\n\r\n")
    assert second.startswith(b"HTTP/1.1 200 ")
    assert heard == [b"/1", b"/2"]
    server.close()
