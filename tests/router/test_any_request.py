"""For any input of a client, a sandbox receives one well-formed request that is meant for it, or none."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sandpool.engine.clock import SystemClock
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.router.destination import Destination, RequestRejected
from sandpool.router.dialer import connect
from sandpool.router.metrics import RouterMetrics
from sandpool.router.router import Router, RouterOptions
from sandpool.router.targets import Target

HOST = "10.231.0.9:8888"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_QUIET = 4  # polls without a change
PRIVATE = (b"authorization", b"x-sandbox-", b"proxy-", b"te", b"trailer", b"keep-alive", b"upgrade", b"expect")


class Heard:
    """One request, parsed strictly."""

    def __init__(self, data: bytes) -> None:
        head, end, self.rest = data.partition(b"\r\n\r\n")
        assert end, f"a head without an end: {data!r}"
        first, *lines = head.split(b"\r\n")
        method, self.target, version = first.split(b" ")
        assert TOKEN.fullmatch(method) and version == b"HTTP/1.1", first
        assert not re.search(rb"[\0\r\n]", head.replace(b"\r\n", b"")), head
        self.headers: list[tuple[bytes, bytes]] = []
        for line in lines:
            name, colon, value = line.partition(b":")
            assert colon and TOKEN.fullmatch(name), line
            self.headers.append((name.lower(), value.strip(b" \t")))

    def all(self, name: bytes) -> list[bytes]:
        return [value for known, value in self.headers if known == name]

    @property
    def body(self) -> bytes:
        """Read the body by its Content-Length or chunks; nothing may follow."""
        sizes, codings = self.all(b"content-length"), self.all(b"transfer-encoding")
        assert len(sizes) + len(codings) <= 1, self.headers
        if not codings:
            assert len(self.rest) == int(sizes[0] if sizes else 0), (self.headers, self.rest)
            return self.rest
        body, rest = b"", self.rest
        while True:
            size, _, rest = rest.partition(b"\r\n")
            length = int(size, 16)
            assert rest[length : length + 2] == b"\r\n", self.rest
            if not length:
                assert rest == b"\r\n", self.rest
                return body
            body, rest = body + rest[:length], rest[length + 2 :]


def is_whole(data: bytearray) -> bool:
    try:
        Heard(bytes(data)).body  # noqa: B018 - reading it is what tells
    except (AssertionError, ValueError):
        return False
    return True


class Listener(asyncio.Protocol):
    """The sandbox: keeps what it hears."""

    def __init__(self, heard: list[bytearray]) -> None:
        self.data = bytearray()
        self.heard = heard

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.heard.append(self.data)

    def data_received(self, data: bytes) -> None:
        self.data += data


class RouterRig:
    """A router between us and a sandbox that says nothing until we tell it to."""

    def __init__(self) -> None:
        self.heard: list[bytearray] = []
        self.wanted: list[Destination] = []
        self.port = 0

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self.listeners: list[Listener] = []

        def made() -> Listener:
            self.listeners.append(Listener(self.heard))
            return self.listeners[-1]

        self.server = await loop.create_server(made, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        self.router = Router(
            self, self.dial, SystemClock(), RouterMetrics(MetricsRegistry()), options=RouterOptions(max_timeout=20.0)
        )
        await self.router.listen("127.0.0.1", 0)

    async def stop(self) -> None:
        await self.router.stop(0)
        self.server.close()

    def find(self, wanted: Destination) -> Target:
        if wanted.sandbox != "box":
            raise RequestRejected(404, "There is no such sandbox.")
        self.wanted.append(wanted)
        return Target("default", "box", "uid", "10.231.0.9")

    async def dial(self, target: Target, port: int) -> socket.socket:
        return await connect("127.0.0.1", self.port)

    async def send(self, data: bytes, *, whole: bool = False) -> tuple[list[bytes], bytes]:
        """What the sandbox heard, and what was answered. The sandbox answers when it has heard a ``whole`` request, or
        else when it hears no more; a client that is not answered then has not said all, and goes."""
        self.heard.clear()
        self.listeners.clear()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.router.ports[0])
        reading = asyncio.create_task(reader.read())
        writer.write(data)
        quiet, patience = 0, _QUIET * 100 if whole else _QUIET
        async with asyncio.timeout(30):
            while not reading.done() and quiet < patience:
                before = sum(map(len, self.heard))
                await asyncio.wait((reading,), timeout=0.005)
                quiet = 0 if sum(map(len, self.heard)) > before else quiet + 1
                if (whole and any(map(is_whole, self.heard))) or quiet == patience:
                    quiet = 0 if self._answer() else quiet
            if not reading.done():
                writer.write_eof()
            with suppress(ConnectionError):
                await reading
        writer.close()
        answer = b"" if reading.exception() else reading.result()
        return [bytes(each) for each in self.heard if each], answer

    def _answer(self) -> bool:
        """Whether the client was still connected."""
        waiting = [each for each in self.listeners if b"\r\n\r\n" in each.data and not each.transport.is_closing()]
        for listener in waiting:
            listener.transport.write(ANSWER)
            listener.transport.close()
        return bool(waiting)

    async def is_alive(self) -> bool:
        _, answer = await self.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return answer.endswith(b'{"status":"ok"}')


class Runner:
    def __init__(self) -> None:
        self.loop = asyncio.Runner()
        self.stage = RouterRig()
        self.loop.run(self.stage.start())

    def send(self, data: bytes, *, whole: bool = False) -> tuple[list[bytes], bytes]:
        return self.loop.run(self.stage.send(data, whole=whole))

    def is_alive(self) -> bool:
        return self.loop.run(self.stage.is_alive())

    def close(self) -> None:
        self.loop.run(self.stage.stop())
        self.loop.close()


_RUNNER: list[Runner] = []


@pytest.fixture(scope="module", autouse=True)
def runner() -> Iterator[None]:
    """One for all examples."""
    _RUNNER.append(Runner())
    yield
    _RUNNER.pop().close()


def check(heard: list[bytes], target: bytes, body: bytes) -> None:
    for data in heard:
        request = Heard(data)
        assert request.target == target
        assert request.all(b"host") == [HOST.encode()]
        assert len(request.all(b"x-forwarded-for")) == 1
        assert not [name for name, _ in request.headers if name.startswith(PRIVATE)], request.headers
        assert request.body == body


def _latin(data: bytes) -> str:
    return data.decode("latin-1")


NAMES = st.sampled_from(
    [
        *("X-Sandbox-ID", "x-sandbox-anything", "Host", "Content-Length", "Transfer-Encoding", "Connection", "Upgrade"),
        *("Authorization", "X-Forwarded-For", "Expect", "TE", "Trailer", "Keep-Alive", "Proxy-Authorization", "Cookie"),
        *("Content_Length", "X", "X-Sandbox-Port", "X-Sandbox-Timeout"),
    ]
)
VALUES = st.sampled_from(
    [
        *(
            "box",
            "other",
            "0",
            "3",
            "+3",
            "3, 3",
            "0x3",
            "chunked",
            "identity",
            "chunked, chunked",
            "close",
            "keep-alive",
        ),
        *("x, Cookie", "Host", "upgrade, X", "websocket", "h2c", "100-continue", "a\r\nX-Injected: b", "a\nX: b", "\0"),
        *("../box", "box/../other", "BOX", "box ", "\tbox", "", "9999999999999999999999", "8888", "1e9"),
    ]
)
TARGETS = st.sampled_from(
    [
        *[b"/ok"] * 30,
        *(b"/", b"/a%2Fb?x=%0d%0a", b"//evil.example/", b"/\\evil", b"/..;/..", b"*", b"http://169.254.169.254/", b"x"),
        *(b"/a#b", b"/%00", b"/\xff", b"/ x", b"/\tHTTP/1.1", b"", b"/healthz", b"/healthz?"),
    ]
)
METHODS = st.sampled_from(
    [*[b"GET", b"POST"] * 8, b"DELETE", b"PUT", b"HEAD", b"CONNECT", b"PRI", b"get", b"M-SEARCH", b"", b"G T"]
)
BODIES = st.sampled_from(
    [*[b""] * 8, b"abc", b"3\r\nabc\r\n0\r\n\r\n", b"GET /2 HTTP/1.1\r\nX-Sandbox-ID: box\r\n\r\n"]
)


LINES = st.tuples(NAMES, VALUES)
# Rarely: most that is wrong in this way is refused at once.
STRANGE = st.tuples(st.binary(max_size=8), st.binary(max_size=12)).map(lambda pair: tuple(map(_latin, pair)))


@given(
    METHODS,
    TARGETS,
    st.lists(LINES, max_size=4) | st.lists(LINES | STRANGE, max_size=4),
    BODIES,
    st.sampled_from(["", *["box"] * 8]),
)
@example(b"POST", b"/", [("Content-Length", "3"), ("Transfer-Encoding", "chunked")], b"abc", "box")
@example(b"POST", b"/", [("Transfer-Encoding", "chunked, identity")], b"3\r\nabc\r\n0\r\n\r\n", "box")
@example(b"GET", b"/", [("Connection", "close, Content-Length"), ("Content-Length", "3")], b"abc", "box")
@example(b"GET", b"/", [("Connection", "Upgrade"), ("Upgrade", "h2c\r\nX: y")], b"", "box")
def test_hostile_heads_reach_a_sandbox_well_formed_or_not_at_all(
    method: bytes, target: bytes, headers: list[tuple[str, str]], body: bytes, sandbox: str
) -> None:
    lines = [("Host", "x"), *([("X-Sandbox-ID", sandbox)] if sandbox else []), *headers]
    head = b"".join(f"{name}: {value}\r\n".encode("latin-1") for name, value in lines)
    heard, _ = _RUNNER[0].send(method + b" " + target + b" HTTP/1.1\r\n" + head + b"\r\n" + body)
    for data in heard:
        request = Heard(data)
        assert request.all(b"host") == [HOST.encode()]
        private = [name for name, _ in request.headers if name.startswith(PRIVATE)]
        # A sandbox may be asked to speak something else, in our words.
        assert set(private) <= {b"upgrade"}, request.headers
        assert request.target.startswith((b"/", b"*"))
        assert b"x-injected" not in dict(request.headers) or any("X-Injected" in value for _, value in headers)
        assert len(request.all(b"content-length")) + len(request.all(b"transfer-encoding")) <= 1
    assert _RUNNER[0].is_alive()


@given(
    st.sampled_from([b"POST", b"PUT", b"PATCH", b"DELETE", b"GET", b"OPTIONS"]),
    st.binary(max_size=300),
    st.none() | st.lists(st.integers(1, 50), min_size=1, max_size=8),
    st.text(st.sampled_from("abc/%20.~-"), max_size=20).map(lambda text: f"/{text}".encode()),
)
def test_body_arrives_as_sent(method: bytes, body: bytes, chunks: list[int] | None, target: bytes) -> None:
    if chunks is None:
        framing, framed = f"Content-Length: {len(body)}", body
    else:
        framing, framed, rest = "Transfer-Encoding: chunked", b"", body
        while rest:
            size = chunks[len(framed) % len(chunks)]
            piece, rest = rest[:size], rest[size:]
            framed += b"%x\r\n%b\r\n" % (len(piece), piece)
        framed += b"0\r\n\r\n"
    head = f"Host: localhost\r\nX-Sandbox-ID: box\r\nAuthorization: Bearer x\r\n{framing}\r\nConnection: close\r\n\r\n"
    heard, answer = _RUNNER[0].send(method + b" " + target + b" HTTP/1.1\r\n" + head.encode() + framed, whole=True)
    assert answer.endswith(b"\r\n\r\nok")
    assert len(heard) == 1
    check(heard, target, body)


@given(st.binary(max_size=200))
def test_router_survives_arbitrary_bytes(data: bytes) -> None:
    heard, _ = _RUNNER[0].send(data)
    assert heard == []
    assert _RUNNER[0].is_alive()


@pytest.mark.parametrize(
    ("headers", "status", "detail"),
    [
        ("", 400, "X-Sandbox-ID header is required."),
        ("X-Sandbox-ID: \r\n", 400, "X-Sandbox-ID header is required."),
        ("X-Sandbox-ID: box.default.svc\r\n", 400, "Invalid sandbox ID format."),
        ("X-Sandbox-ID: ../box\r\n", 400, "Invalid sandbox ID format."),
        ("X-Sandbox-ID: box@evil\r\n", 400, "Invalid sandbox ID format."),
        ("X-Sandbox-ID: box:22\r\n", 400, "Invalid sandbox ID format."),
        ("X-Sandbox-ID: box, other\r\n", 400, "Invalid sandbox ID format."),
        ("X-Sandbox-ID: b%6fx\r\n", 400, "Invalid sandbox ID format."),
        ("X-Sandbox-ID: box\r\nX-Sandbox-Namespace: a/b\r\n", 400, "Invalid namespace format."),
        ("X-Sandbox-ID: box\r\nX-Sandbox-Port: 22; nc\r\n", 400, "Invalid port format."),
        ("X-Sandbox-ID: box\r\nX-Sandbox-Port: 0\r\n", 400, "Invalid port format."),
        ("X-Sandbox-ID: box\r\nX-Sandbox-Pod-IP: localhost\r\n", 400, "Invalid target IP address."),
        ("X-Sandbox-ID: other\r\n", 404, "There is no such sandbox."),
    ],
)
def test_invalid_destination_headers_are_rejected(headers: str, status: int, detail: str) -> None:
    heard, answer = _RUNNER[0].send(f"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n".encode())
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert answer.endswith(f'\r\n\r\n{{"detail":"{detail}"}}'.encode())
    assert heard == []
