"""The HTTP transport against a small server on loopback that does exactly what each test says."""

from __future__ import annotations

import asyncio
import gc
import gzip
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import orjson
import pytest
from aiohttp import web

from sandpool.api.resource import ResourceType
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.connection import Connection
from sandpool.kube.credentials import Fixed, TokenFile
from sandpool.kube.errors import (
    ApiError,
    Conflict,
    Expired,
    InternalError,
    NotFound,
    ServiceUnavailable,
    TooManyRequests,
    Unauthorized,
)
from sandpool.kube.http import HttpTransport
from sandpool.kube.retry import Retry
from sandpool.kube.transport import JSON, MERGE_PATCH, Request, WatchEvent
from tests.support.fixed_random import FixedRandom

PODS = ResourceType("", "v1", "Pod", "pods")

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


def status(code: int, reason: str, **details: Any) -> web.Response:
    body = {"kind": "Status", "code": code, "reason": reason, "message": f"it is {reason}", "details": details}
    return web.Response(status=code, body=orjson.dumps(body), content_type=JSON)


def answer(body: Any) -> web.Response:
    return web.Response(body=orjson.dumps(body), content_type=JSON)


@asynccontextmanager
async def serving(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A server with one handler for every request; gives its address."""
    runner = web.ServerRunner(web.Server(handler, handler_cancellation=True), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


class Sleeps:
    """Records how long it was asked to sleep and does not."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)


@asynccontextmanager
async def client_of(
    handler: Handler, *, tls: ssl.SSLContext | None = None, credentials: Any = None, **options: Any
) -> AsyncIterator[Client]:
    async with serving(handler) as url:
        transport = HttpTransport(Connection(url, tls, credentials or Fixed()), **options)
        try:
            yield Client(transport)
        finally:
            await transport.close()


def scripted(*answers: web.Response) -> tuple[Handler, list[web.BaseRequest]]:
    """A handler that gives these answers in order, and the requests it got."""
    seen: list[web.BaseRequest] = []

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        await request.read()
        seen.append(request)
        return answers[len(seen) - 1]

    return handle, seen


def streaming(*chunks: bytes, cut: bool = False) -> Handler:
    """A handler that sends these chunks of a body, and then ends it or cuts the connection."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": JSON})
        response.enable_chunked_encoding()
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        if cut:
            assert request.transport is not None
            request.transport.close()
        return response

    return handle


def line(type: str, object: Any) -> bytes:
    return orjson.dumps({"type": type, "object": object}) + b"\n"


async def collect(stream: AsyncIterator[WatchEvent]) -> list[WatchEvent]:
    return [event async for event in stream]


NO_WAITING: dict[str, Any] = {"retry": Retry(rng=FixedRandom(0.0))}


async def test_request_has_method_path_and_headers() -> None:
    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        return answer(
            {
                "method": request.method,
                "path": request.raw_path,
                "agent": request.headers["User-Agent"],
                "accept": request.headers["Accept"],
                "type": request.headers.get("Content-Type"),
                "authorization": request.headers.get("Authorization"),
                "body": (await request.read()).decode(),
            }
        )

    async with client_of(handle, credentials=Fixed.token("t")) as client:
        assert await client.patch(PODS, "a", MergePatch({"ü": None}), "ns", dry_run=True) == {
            "method": "PATCH",
            "path": "/api/v1/namespaces/ns/pods/a?dryRun=All&fieldManager=sandpool",
            "agent": "sandpool/0.1.0",
            "accept": JSON,
            "type": MERGE_PATCH,
            "authorization": "Bearer t",
            "body": '{"ü":null}',
        }
        listed = await client.list(PODS, label_selector="a in (b, c),d", field_selector="metadata.name=x+y&z")
        assert listed["path"] == (
            "/api/v1/pods?labelSelector=a%20in%20%28b%2C%20c%29%2Cd&fieldSelector=metadata.name%3Dx%2By%26z"
        )
        assert (listed["type"], listed["body"]) == (None, "")
        raw = Request("PUT", "/x/%2e%2e/y", body=b"\x00\x01", content_type="application/octet-stream")
        sent = await client.transport.request(raw)
        assert (sent["path"], sent["body"], sent["type"]) == ("/x/%2e%2e/y", "\x00\x01", "application/octet-stream")


async def test_path_of_the_server_address_is_kept() -> None:
    handle, seen = scripted(answer({}))
    async with serving(handle) as url:
        transport = HttpTransport(Connection(f"{url}/k8s/clusters/c-1/"))
        await Client(transport).get(PODS, "a", "ns")
        await transport.close()
    assert seen[0].path == "/k8s/clusters/c-1/api/v1/namespaces/ns/pods/a"


async def test_requests_go_through_the_proxy() -> None:
    async def proxy(request: web.BaseRequest) -> web.StreamResponse:
        return answer({"asked for": str(request.url)})

    async with serving(proxy) as url:
        transport = HttpTransport(Connection("http://api.invalid", proxy=url))
        assert await transport.request(Request("GET", "/readyz")) == {"asked for": "http://api.invalid/readyz"}
        await transport.close()


async def test_requests_share_connections_and_watches_have_their_own() -> None:
    peers: dict[str, list[Any]] = {"true": [], "": []}

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        assert request.transport is not None
        peers[request.query.get("watch", "")].append(request.transport.get_extra_info("peername"))
        return answer({"type": "ADDED", "object": {}})

    async with client_of(handle) as client:
        for _ in range(3):
            await client.get(PODS, "a", "ns")
            await collect(client.watch(PODS))
    assert len(set(peers[""])) == 1
    assert len(set(peers["true"])) == 3


async def test_many_watches_leave_connections_for_requests() -> None:
    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        if "watch" not in request.query:
            return answer({})
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(line("ADDED", {}))
        await asyncio.Event().wait()
        return response

    async with client_of(handle, max_connections=1) as client:
        streams = [client.watch(PODS) for _ in range(5)]
        for stream in streams:
            await anext(stream)
        assert await client.get(PODS, "a", "ns") == {}
        for stream in streams:
            await stream.aclose()  # type: ignore[attr-defined]


async def test_compressed_responses_are_decoded() -> None:
    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        assert "gzip" in request.headers["Accept-Encoding"]
        headers = {"Content-Encoding": "gzip", "Content-Type": JSON}
        return web.Response(body=gzip.compress(b'{"a":1}'), headers=headers)

    async with client_of(handle) as client:
        assert await client.get(PODS, "a", "ns") == {"a": 1}


async def test_plain_text_response_is_text() -> None:
    handle, _ = scripted(web.Response(text="ok"))
    async with client_of(handle) as client:
        assert await client.transport.request(Request("GET", "/readyz")) == "ok"


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (status(404, "NotFound", name="a"), NotFound),
        (status(409, "Conflict"), Conflict),
        (web.Response(status=404, text="page not found"), NotFound),
        (web.Response(status=418, text="teapot"), ApiError),
        (web.Response(status=302, headers={"Location": "http://elsewhere.invalid/"}), ApiError),
    ],
)
async def test_error_response_is_a_typed_error(response: web.Response, expected: type[ApiError]) -> None:
    handle, seen = scripted(response)
    async with client_of(handle) as client:
        with pytest.raises(expected) as raised:
            await client.get(PODS, "a", "ns")
    assert raised.value.code == response.status
    assert len(seen) == 1


async def test_response_that_is_not_json_is_a_connection_error() -> None:
    handle, _ = scripted(web.Response(body=b"{", content_type=JSON))
    async with client_of(handle) as client:
        with pytest.raises(ConnectionError, match="not JSON"):
            await client.get(PODS, "a", "ns")


async def test_truncated_body_is_a_connection_error() -> None:
    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100", "Content-Type": JSON})
        await response.prepare(request)
        await response.write(b'{"kind":')
        assert request.transport is not None
        request.transport.close()
        return response

    async with client_of(handle) as client:
        with pytest.raises(ConnectionError):
            await client.get(PODS, "a", "ns")


async def test_refused_connection_is_a_connection_error() -> None:
    with socket.socket() as placeholder:
        placeholder.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{placeholder.getsockname()[1]}"
        transport = HttpTransport(Connection(url))
        with pytest.raises(ConnectionError, match=url):
            await Client(transport).get(PODS, "a", "ns")
        with pytest.raises(ConnectionError, match=url):
            await anext(transport.stream(Request("GET", "/")))
        await transport.close()


async def test_slow_server_is_a_timeout() -> None:
    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async with client_of(handle, request_timeout=0.02) as client:
        with pytest.raises(TimeoutError, match="did not answer in time"):
            await client.get(PODS, "a", "ns")
        with pytest.raises(TimeoutError, match="did not answer in time"):
            await anext(client.watch(PODS))


# --- trying again -----------------------------------------------------------------------------------------------


async def test_reads_are_retried_after_every_transient_failure() -> None:
    failures = [
        status(429, "TooManyRequests", retryAfterSeconds=7),
        status(500, "InternalError"),
        status(503, "ServiceUnavailable"),
        status(504, "Timeout"),
    ]
    handle, seen = scripted(*failures, answer({"a": 1}))
    sleeps = Sleeps()
    async with client_of(handle, sleep=sleeps, **NO_WAITING) as client:
        assert await client.get(PODS, "a", "ns") == {"a": 1}
    assert len(seen) == 5
    assert sleeps.slept == [7.0, 0.1, 0.2, 0.4]


async def test_attempts_are_limited() -> None:
    handle, seen = scripted(*[status(503, "ServiceUnavailable") for _ in range(9)])
    async with client_of(handle, sleep=Sleeps()) as client:
        with pytest.raises(ServiceUnavailable):
            await client.get(PODS, "a", "ns")
    assert len(seen) == 5


async def test_write_is_retried_only_with_retry_after() -> None:
    refused = web.Response(status=429, headers={"Retry-After": "2"}, text="Too many requests, please try again later.")
    handle, seen = scripted(refused, status(503, "ServiceUnavailable", retryAfterSeconds=1), answer({"a": 1}))
    sleeps = Sleeps()
    async with client_of(handle, sleep=sleeps, **NO_WAITING) as client:
        assert await client.create(PODS, {"metadata": {}}, "ns") == {"a": 1}
    assert sleeps.slept == [2.0, 1.0]
    assert [await request.read() for request in seen] == [b'{"metadata":{}}'] * 3


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (status(503, "ServiceUnavailable"), ServiceUnavailable),
        (status(500, "InternalError", retryAfterSeconds=1), InternalError),
        (status(504, "Timeout", retryAfterSeconds=1), ApiError),
        (status(429, "TooManyRequests", retryAfterSeconds=3600), TooManyRequests),
    ],
)
async def test_write_that_may_have_been_executed_is_not_repeated(
    response: web.Response, expected: type[ApiError]
) -> None:
    handle, seen = scripted(response)
    async with client_of(handle, sleep=Sleeps()) as client:
        with pytest.raises(expected):
            await client.create(PODS, {}, "ns")
    assert len(seen) == 1


async def test_opening_a_watch_is_retried_like_a_read() -> None:
    handle, _ = scripted(status(429, "TooManyRequests", retryAfterSeconds=1), answer({"type": "ADDED", "object": {}}))
    sleeps = Sleeps()
    async with client_of(handle, sleep=sleeps, **NO_WAITING) as client:
        assert await collect(client.watch(PODS)) == [WatchEvent("ADDED", {})]
    assert sleeps.slept == [1.0]


# --- watches ----------------------------------------------------------------------------------------------------


async def test_watch_yields_events_until_the_server_ends_it() -> None:
    body = line("ADDED", {"n": 1}) + line("MODIFIED", {"n": 2}) + line("BOOKMARK", {"n": 3})
    for size in (1, 7, len(body)):
        chunks = [body[start : start + size] for start in range(0, len(body), size)]
        async with client_of(streaming(*chunks)) as client:
            events = await collect(client.watch(PODS))
        assert events == [
            WatchEvent("ADDED", {"n": 1}),
            WatchEvent("MODIFIED", {"n": 2}),
            WatchEvent("BOOKMARK", {"n": 3}),
        ]


async def test_watch_event_can_be_as_long_as_an_object() -> None:
    big = {"data": "x" * (3 * 1024 * 1024)}
    async with client_of(streaming(line("ADDED", big), line("DELETED", {}))) as client:
        assert await collect(client.watch(PODS)) == [WatchEvent("ADDED", big), WatchEvent("DELETED", {})]


async def test_watch_cut_within_an_event_is_a_connection_error() -> None:
    async with client_of(streaming(line("ADDED", {"n": 1}), b'{"type":"ADD', cut=True)) as client:
        stream = client.watch(PODS)
        assert await anext(stream) == WatchEvent("ADDED", {"n": 1})
        with pytest.raises(ConnectionError):
            await anext(stream)


@pytest.mark.parametrize("garbage", [b'{"type":"ADD', b"[]\n", b'{"type":"ADDED"}\n', b"no\n", b"\n"])
async def test_malformed_watch_line_is_a_connection_error(garbage: bytes) -> None:
    async with client_of(streaming(garbage)) as client:
        with pytest.raises(ConnectionError):
            await collect(client.watch(PODS))


async def test_error_event_is_raised() -> None:
    gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version: 1 (5)"}
    async with client_of(streaming(line("ADDED", {}), line("ERROR", gone))) as client:
        stream = client.watch(PODS)
        await anext(stream)
        with pytest.raises(Expired, match="too old resource version"):
            await anext(stream)


async def test_rejected_watch_is_a_typed_error() -> None:
    handle, _ = scripted(status(410, "Expired"))
    async with client_of(handle) as client:
        with pytest.raises(Expired):
            await anext(client.watch(PODS))


async def test_silent_watch_is_a_timeout() -> None:
    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(line("ADDED", {}))
        await asyncio.Event().wait()
        return response

    async with client_of(handle, watch_idle_timeout=0.05) as client:
        with pytest.raises(TimeoutError, match="did not answer in time"):
            await collect(client.watch(PODS))


class Endless:
    """A server whose watches send one event and then nothing; it knows how many are open."""

    def __init__(self) -> None:
        self.open = 0
        self.ended = asyncio.Event()

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(line("ADDED", {}))
        self.open += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.open -= 1
            self.ended.set()
        return response


async def test_closing_a_watch_releases_its_connection() -> None:
    server = Endless()
    async with client_of(server) as client:
        async with aclosing(client.watch(PODS)) as stream:  # type: ignore[type-var]
            await anext(stream)
            assert server.open == 1
        await asyncio.wait_for(server.ended.wait(), 60)
        assert server.open == 0


async def test_closing_the_transport_ends_its_streams() -> None:
    async with serving(Endless()) as url:
        transport = HttpTransport(Connection(url))
        first = [transport.stream(Request("GET", "/")) for _ in range(2)]
        for stream in first:
            await anext(stream)
        waiting = [asyncio.ensure_future(collect(stream)) for stream in first]
        await asyncio.sleep(0)
        await transport.close()
        assert await asyncio.wait_for(asyncio.gather(*waiting), 60) == [[], []]
        with pytest.raises(ConnectionError, match="closed"):
            await transport.request(Request("GET", "/"))
        with pytest.raises(ConnectionError, match="closed"):  # a loop that watches again must end
            await collect(transport.stream(Request("GET", "/")))


def test_transports_in_threads_leave_nothing_running() -> None:
    """Two threads, each with its own loop, server and transport: no task, socket or thread survives."""
    failures: list[BaseException] = []

    async def use() -> None:
        async with client_of(Endless()) as client:
            stream = client.watch(PODS)
            await anext(stream)
            waiting = asyncio.ensure_future(collect(stream))
            await asyncio.sleep(0)
            await client.close()
            assert await asyncio.wait_for(waiting, 60) == []
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, left

    def run() -> None:
        try:
            asyncio.run(use())
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    before = threading.active_count()
    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert threading.active_count() == before


# --- TLS and credentials ----------------------------------------------------------------------------------------


def trusting(certificate: Any) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=certificate)


async def get(connection: Connection) -> Any:
    transport = HttpTransport(connection)
    try:
        return await transport.request(Request("GET", "/"))
    finally:
        await transport.close()


def test_watch_ends_without_a_tls_close_from_the_server(authority: Any) -> None:
    """Then nothing of it is left when the event loop is gone: an open connection would be complained about."""
    done = threading.Event()

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with authority.server_context("127.0.0.1").wrap_socket(connection, server_side=True) as connection:
            connection.recv(1 << 16)
            line = orjson.dumps({"type": "ADDED", "object": {"metadata": {"name": "a"}}}) + b"\n"
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
            connection.sendall(head + b"%x\r\n%b\r\n" % (len(line), line))
            done.wait(20)

    async def watch(port: int) -> None:
        transport = HttpTransport(Connection(f"https://127.0.0.1:{port}", trusting(authority.certificate), Fixed()))
        async with aclosing(Client(transport).watch(PODS, "default")) as events:  # type: ignore[type-var]
            assert (await anext(events)).type == "ADDED"
        await transport.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, args=(listener,))
        server.start()
        asyncio.run(watch(listener.getsockname()[1]))
        gc.collect()
        done.set()
        server.join()


async def test_tls_is_verified(authority: Any) -> None:
    handle, _ = scripted(answer({"a": 1}), answer({"a": 2}))
    async with serving(handle, authority.server_context("127.0.0.1")) as url:
        assert await get(Connection(url, trusting(authority.certificate))) == {"a": 1}
        with pytest.raises(ConnectionError, match="certificate"):
            await get(Connection(url))


async def test_name_in_the_certificate_is_verified(authority: Any) -> None:
    handle, _ = scripted(answer({"a": 1}))
    async with serving(handle, authority.server_context("kubernetes.default")) as url:
        with pytest.raises(ConnectionError, match="certificate"):
            await get(Connection(url, trusting(authority.certificate)))
        named = Connection(url, trusting(authority.certificate), tls_server_name="kubernetes.default")
        assert await get(named) == {"a": 1}


async def test_client_certificate_is_sent(authority: Any) -> None:
    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        assert request.transport is not None
        return answer(request.transport.get_extra_info("peercert"))

    pair = authority.sign("alice")
    context = trusting(authority.certificate)
    context.load_cert_chain(pair.certificate, pair.key)
    async with serving(handle, authority.server_context("127.0.0.1", ask_for_certificate=True)) as url:
        shown = await get(Connection(url, context))
    assert shown["subject"] == [[["commonName", "alice"]]]


async def test_replaced_token_file_is_used_at_once(tmp_path: Any) -> None:
    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        return answer(request.headers["Authorization"])

    token = tmp_path / "token"
    token.write_text("one\n")
    async with client_of(handle, credentials=TokenFile(token)) as client:
        assert await client.transport.request(Request("GET", "/")) == "Bearer one"
        # As the kubelet does it: another file takes the name.
        (tmp_path / "next").write_text("two")
        (tmp_path / "next").rename(token)
        assert await client.transport.request(Request("GET", "/")) == "Bearer two"


class Renewable:
    """Credentials whose second version is the good one."""

    def __init__(self, *, renewable: bool = True) -> None:
        self.renewable = renewable
        self.current = Fixed.token("old")
        self.renewed = 0

    async def auth(self) -> Any:
        return await self.current.auth()

    async def renew(self, refused: Any) -> bool:
        self.renewed += 1
        self.current = Fixed.token("new")
        return self.renewable


async def test_rejected_credentials_are_renewed_once() -> None:
    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        if request.headers["Authorization"] == "Bearer new":
            return answer({"a": 1})
        return status(401, "Unauthorized")

    credentials = Renewable()
    async with client_of(handle, credentials=credentials) as client:
        assert await client.create(PODS, {}, "ns") == {"a": 1}
    assert credentials.renewed == 1


@pytest.mark.parametrize("renewable", [True, False])
async def test_credentials_rejected_twice_are_an_error(renewable: bool) -> None:
    handle, seen = scripted(status(401, "Unauthorized"), status(401, "Unauthorized"))
    credentials = Renewable(renewable=renewable)
    async with client_of(handle, credentials=credentials) as client:
        with pytest.raises(Unauthorized):
            await client.get(PODS, "a", "ns")
    assert (credentials.renewed, len(seen)) == (1, 2 if renewable else 1)
