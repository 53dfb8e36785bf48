"""A sandbox answers only the requests that were sent to it, whatever bytes it writes.

A client keeps one connection to the router and uses it for two sandboxes. ``evil`` writes hostile bytes, in part late,
while the request to ``good`` is under way. The client accepts only well-formed responses and checks that each one
belongs to its own request.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sandpool.engine.clock import SystemClock
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.router.destination import Destination
from sandpool.router.dialer import connect
from sandpool.router.metrics import RouterMetrics
from sandpool.router.router import Router, RouterOptions
from sandpool.router.targets import Target

_LIMIT = 30.0
_QUIET = 0.02  # seconds in which a response that is complete reaches the client
_STATUS_LINE = re.compile(rb"HTTP/1\.1 ([1-9][0-9]{2}) [\t\x20-\x7e\x80-\xff]*")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+): ?([\t\x20-\x7e\x80-\xff]*)")

FORGED = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nFORGED"
REAL = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Truncated(Exception):
    """The connection ended before the response did."""


class StrictClient:
    """One connection. Reads responses as RFC 9112 has them and fails on everything else."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.is_open = True

    def ask(self, sandbox: str, path: str, method: str = "GET") -> None:
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nX-Sandbox-ID: {sandbox}\r\n\r\n"
        with suppress(ConnectionError):
            self.writer.write(head.encode())

    async def response(self, method: str = "GET") -> tuple[int, bytes]:
        try:
            return await self._response(method)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            self.is_open = False
            raise Truncated from error

    async def _response(self, method: str) -> tuple[int, bytes]:
        head = (await self.reader.readuntil(b"\r\n\r\n"))[:-4]
        first, *lines = head.split(b"\r\n")
        status_line = _STATUS_LINE.fullmatch(first)
        assert status_line, head
        status = int(status_line[1])
        assert status >= 200, f"an interim response to a request without Expect: {head!r}"
        fields: list[tuple[bytes, bytes]] = []
        for line in lines:
            field = _FIELD.fullmatch(line)
            assert field, head
            fields.append((field[1].lower(), field[2]))
        sizes = [value for name, value in fields if name == b"content-length"]
        codings = [value for name, value in fields if name == b"transfer-encoding"]
        assert len(sizes) + len(codings) <= 1, head
        if (b"connection", b"close") in fields:
            self.is_open = False
        if method == "HEAD" or status in (204, 304):
            return status, b""
        if codings:
            assert codings == [b"chunked"], head
            return status, await self._chunks()
        assert sizes, f"a response without an end: {head!r}"
        assert re.fullmatch(rb"[0-9]+", sizes[0]), head
        return status, await self.reader.readexactly(int(sizes[0]))

    async def _chunks(self) -> bytes:
        body = b""
        while True:
            size = int((await self.reader.readuntil(b"\r\n"))[:-2], 16)
            data = await self.reader.readexactly(size)
            assert await self.reader.readexactly(2) == b"\r\n"
            if not size:
                return body
            body += data


class Sandboxes:
    """A router in front of ``evil`` and ``good``. Good answers with the path it was asked for."""

    def __init__(self) -> None:
        self.early = self.late = b""
        self.late_is_due = asyncio.Event()
        self.late_is_written = asyncio.Event()
        self.wrote_early = asyncio.Event()
        self.ports: dict[str, int] = {}
        self.writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self.servers = [await asyncio.start_server(talk, "127.0.0.1", 0) for talk in (self._talk_evil, self._talk_good)]
        for name, server in zip(("evil", "good"), self.servers, strict=True):
            self.ports[name] = server.sockets[0].getsockname()[1]
        self.router = Router(
            self, self.dial, SystemClock(), RouterMetrics(MetricsRegistry()), options=RouterOptions(max_timeout=20.0)
        )
        await self.router.listen("127.0.0.1", 0)

    async def stop(self) -> None:
        await self.router.stop(0)
        for server in self.servers:
            server.close()
        for writer in self.writers:
            writer.transport.abort()
        await asyncio.sleep(0)

    def find(self, wanted: Destination) -> Target:
        return Target("default", wanted.sandbox, wanted.sandbox, "10.231.0.9")

    async def dial(self, target: Target, port: int) -> socket.socket:
        return await connect("127.0.0.1", self.ports[target.pod])

    async def _talk_evil(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(self.early)
            await writer.drain()
            self.wrote_early.set()
            await self.late_is_due.wait()
            writer.write(self.late)
            await writer.drain()
        with suppress(ConnectionError):
            writer.close()
            await writer.wait_closed()
        self.writers.discard(writer)
        self.late_is_written.set()

    async def _talk_good(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                # The late bytes of evil come while the client waits for this response.
                self.late_is_due.set()
                await self.late_is_written.wait()
                path = head.split()[1]
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(path), path))
        self.writers.discard(writer)
        writer.close()

    async def attack(self, early: bytes, late: bytes, method: str = "GET") -> tuple[int, bytes] | None:
        """Ask evil once and good twice over one connection. Return what evil could make of its own response, None if it
        was truncated."""
        self.early, self.late = early, late
        for event in (self.late_is_due, self.late_is_written, self.wrote_early):
            event.clear()
        async with asyncio.timeout(_LIMIT):
            client = StrictClient(*await asyncio.open_connection("127.0.0.1", self.router.ports[0]))
            try:
                return await self._ask_all(client, method)
            finally:
                self.late_is_due.set()
                client.writer.close()

    async def _ask_all(self, client: StrictClient, method: str) -> tuple[int, bytes] | None:
        client.ask("evil", "/evil", method)
        first = asyncio.create_task(client.response(method))
        await self.wrote_early.wait()
        await asyncio.wait((first,), timeout=_QUIET)
        if not first.done():
            self.late_is_due.set()  # the response is not complete without the late bytes
        try:
            own = await first
        except Truncated:
            assert not client.is_open
            return None
        for path in ("/nonce-1", "/nonce-2"):
            if not client.is_open:
                break
            client.ask("good", path)
            try:
                assert await client.response() == (200, path.encode()), "the response of another sandbox"
            except Truncated:
                break
        if not client.is_open:
            with suppress(ConnectionError):
                assert await client.reader.read() == b"", "bytes after the last response"
        return own


class Runner:
    """One event loop and one router for all examples."""

    def __init__(self) -> None:
        self.loop = asyncio.Runner()
        self.sandboxes = self.loop.run(self._made())

    async def _made(self) -> Sandboxes:
        sandboxes = Sandboxes()
        await sandboxes.start()
        return sandboxes

    def attack(self, early: bytes, late: bytes = b"", method: str = "GET") -> tuple[int, bytes] | None:
        return self.loop.run(self.sandboxes.attack(early, late, method))

    def close(self) -> None:
        self.loop.run(self.sandboxes.stop())
        self.loop.close()


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    runner = Runner()
    yield runner
    runner.close()


def _response(head: str, body: bytes = b"") -> bytes:
    return "\r\n".join([*head.split("\n"), "", ""]).encode("latin-1") + body


_LENGTH_OF_FORGED = f"Content-Length: {len(FORGED)}"

REJECTED = {
    "interim response with a length": _response(f"HTTP/1.1 199 x\n{_LENGTH_OF_FORGED}", FORGED) + REAL,
    "interim response in chunks": _response("HTTP/1.1 102 x\nTransfer-Encoding: chunked", b"0\r\n\r\n") + REAL,
    "continue with a length": _response(f"HTTP/1.1 100 Continue\n{_LENGTH_OF_FORGED}", FORGED) + REAL,
    "unrequested upgrade": _response("HTTP/1.1 101 x\nConnection: Upgrade\nUpgrade: x", FORGED),
    "second response": REAL + FORGED,
    "one byte too many": REAL + b"x",
    "empty line after the end": REAL + b"\r\n",
    "bytes after the last chunk": _response("HTTP/1.1 200 OK\nTransfer-Encoding: chunked", b"0\r\n\r\n" + FORGED),
    "204 with a body": _response(f"HTTP/1.1 204 x\n{_LENGTH_OF_FORGED}", FORGED),
    "204 in chunks": _response("HTTP/1.1 204 x\nTransfer-Encoding: chunked", b"0\r\n\r\n"),
    "204 followed by bytes": _response("HTTP/1.1 204 x", FORGED),
    "304 with a body": _response(f"HTTP/1.1 304 x\n{_LENGTH_OF_FORGED}", FORGED),
    "two lengths": _response(f"HTTP/1.1 200 OK\nContent-Length: 0\n{_LENGTH_OF_FORGED}", FORGED),
    "the same length twice": _response("HTTP/1.1 200 OK\nContent-Length: 2\nContent-Length: 2", b"ok"),
    "list of lengths": _response("HTTP/1.1 200 OK\nContent-Length: 2, 2", b"ok"),
    "signed length": _response("HTTP/1.1 200 OK\nContent-Length: +2", b"ok"),
    "negative length": _response("HTTP/1.1 200 OK\nContent-Length: -2", b"ok"),
    "hexadecimal length": _response("HTTP/1.1 200 OK\nContent-Length: 0x2", b"ok"),
    "empty length": _response("HTTP/1.1 200 OK\nContent-Length:", b"ok"),
    "endless length": _response(f"HTTP/1.1 200 OK\nContent-Length: {'9' * 40}", b"ok"),
    "length and chunks": _response("HTTP/1.1 200 OK\nContent-Length: 2\nTransfer-Encoding: chunked", b"0\r\n\r\n"),
    "unknown transfer coding": _response("HTTP/1.1 200 OK\nTransfer-Encoding: gzip", b"0\r\n\r\n"),
    "two transfer codings": _response("HTTP/1.1 200 OK\nTransfer-Encoding: gzip, chunked", b"0\r\n\r\n"),
    "chunked twice": _response("HTTP/1.1 200 OK\nTransfer-Encoding: chunked\nTransfer-Encoding: chunked", b"0\r\n\r\n"),
    "chunks in HTTP/1.0": _response("HTTP/1.0 200 OK\nTransfer-Encoding: chunked", b"0\r\n\r\n"),
    "folded header": _response("HTTP/1.1 200 OK\nX: y\n Content-Length: 2\nContent-Length: 2", b"ok"),
    "NUL in a header": _response("HTTP/1.1 200 OK\nX: a\0b\nContent-Length: 2", b"ok"),
    "bare CR in a header": _response("HTTP/1.1 200 OK\nX: a\rContent-Length: 6\nContent-Length: 2", b"ok"),
    "bare LF in a header": b"HTTP/1.1 200 OK\r\nX: a\nContent-Length: 6\r\nContent-Length: 2\r\n\r\nok",
    "bare LF as line end": b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
    "space before the colon": _response("HTTP/1.1 200 OK\nContent-Length : 2", b"ok"),
    "header without a name": _response("HTTP/1.1 200 OK\n: 2\nContent-Length: 2", b"ok"),
    "header without a colon": _response("HTTP/1.1 200 OK\nContent-Length", b"ok"),
    "control character in the reason": _response("HTTP/1.1 200 O\x01K\nContent-Length: 2", b"ok"),
    "another version": _response("HTTP/2.0 200 OK\nContent-Length: 2", b"ok"),
    "status of two digits": _response("HTTP/1.1 20 OK\nContent-Length: 2", b"ok"),
    "no HTTP at all": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "chunk size with a sign": _response("HTTP/1.1 200 OK\nTransfer-Encoding: chunked", b"+2\r\nok\r\n0\r\n\r\n"),
    "chunk size with a prefix": _response("HTTP/1.1 200 OK\nTransfer-Encoding: chunked", b"0x2\r\nok\r\n0\r\n\r\n"),
    "chunk longer than its size": _response("HTTP/1.1 200 OK\nTransfer-Encoding: chunked", b"1\r\nok\r\n0\r\n\r\n"),
    "chunk line that ends with LF": _response("HTTP/1.1 200 OK\nTransfer-Encoding: chunked", b"2\nok\r\n0\r\n\r\n"),
    "malformed trailer": _response("HTTP/1.1 200 OK\nTransfer-Encoding: chunked", b"0\r\nnot a field\r\n\r\n"),
}


@pytest.mark.parametrize("data", REJECTED.values(), ids=REJECTED)
def test_malformed_response_is_answered_with_502_and_closes_the_connection(runner: Runner, data: bytes) -> None:
    own = runner.attack(data)
    assert own is not None and own[0] == 502, own
    assert runner.attack(REAL) == (200, b"ok"), "the router goes on"


@pytest.mark.parametrize("late", [FORGED, b"x", b"\r\n", b"\0"])
@pytest.mark.parametrize(
    "early",
    [
        REAL,
        _response("HTTP/1.1 204 No Content"),
        _response("HTTP/1.1 200 OK\nTransfer-Encoding: chunked", b"2\r\nok\r\n0\r\n\r\n"),
        _response("HTTP/1.1 304 Not Modified\nContent-Length: 90"),
    ],
)
def test_bytes_after_a_complete_response_reach_no_client(runner: Runner, early: bytes, late: bytes) -> None:
    own = runner.attack(early, late)
    assert own is not None and own[0] == int(early.split()[1])


def test_response_to_head_with_a_body_is_malformed(runner: Runner) -> None:
    head = _response(f"HTTP/1.1 200 OK\n{_LENGTH_OF_FORGED}")
    assert runner.attack(head, method="HEAD") == (200, b"")
    assert runner.attack(head, FORGED, method="HEAD") == (200, b"")
    own = runner.attack(head + FORGED, method="HEAD")
    assert own is not None and own[0] == 502


def test_interim_responses_are_skipped(runner: Runner) -> None:
    interim = _response("HTTP/1.1 103 Early Hints\nLink: </style.css>") + _response("HTTP/1.1 199 x")
    assert runner.attack(interim + REAL) == (200, b"ok")
    assert runner.attack(interim, REAL) == (200, b"ok")


def test_response_that_is_shorter_than_its_length_is_truncated(runner: Runner) -> None:
    assert runner.attack(_response("HTTP/1.1 200 OK\nContent-Length: 3", b"ok")) is None


# --- generated -------------------------------------------------------------------------------------------------------

STATUS_LINES = st.sampled_from(
    [
        *["HTTP/1.1 200 OK"] * 8,
        *(f"HTTP/1.1 {status} x" for status in (100, 101, 102, 103, 199, 204, 205, 206, 304, 401, 500, 599, 600, 999)),
        *(
            "HTTP/1.0 200 OK",
            "HTTP/1.1 200",
            "HTTP/1.1  200 OK",
            "HTTP/1.2 200 OK",
            "HTTP/1.1 200 \0",
            "",
            "http/1.1 200 x",
        ),
    ]
)
FIELDS = st.sampled_from(
    [
        *("Content-Length: 0", "Content-Length: 2", _LENGTH_OF_FORGED, "Content-Length: 99999", "content-length: 2"),
        *("Transfer-Encoding: chunked", "Transfer-Encoding: Chunked", "Transfer-Encoding: identity"),
        *("Transfer-Encoding: chunked, chunked", "Transfer-Encoding:\tchunked", "Transfer-Encoding: x\n chunked"),
        *("Connection: close", "Connection: keep-alive", "Connection: Content-Length", "Connection: upgrade"),
        *("Upgrade: websocket", "Trailer: Content-Length", "X-Sandbox-ID: good", "Content-Length: 0 2", "X: \xff"),
        *("Content-Length: 2\0", "Content-Length:", "Content-Length\t: 2", "X", ": y", " folded"),
        *("X: a\rb", "Content_Length: 6"),
    ]
)  # fmt: skip
BODIES = st.sampled_from(
    [
        *[b""] * 4,
        *(b"ok", FORGED, FORGED + FORGED, REAL + FORGED, b"\r\n" + FORGED, b"0\r\n\r\n", b"2\r\nok\r\n0\r\n\r\n"),
        *(b"%x\r\n%b\r\n0\r\n\r\n" % (len(FORGED), FORGED), b"0\r\n\r\n" + FORGED, b"0\r\n" + FORGED + b"\r\n\r\n"),
        *(b"2;x=y\r\nok\r\n0\r\n\r\n", b"2;\nok\r\n0\r\n\r\n", b"2\r\nok0\r\n\r\n", b"-1\r\n"),
        b"ffffffffffffffffff\r\n",
        *(b"0\r\nContent-Length: 6\r\n\r\n" + FORGED, b"0\r\n\n" + FORGED, b"\0" * 9),
    ]
)  # fmt: skip
MESSAGES = st.builds(
    lambda line, fields, body: _response("\n".join([line, *fields]), body),
    STATUS_LINES,
    st.lists(FIELDS, max_size=3),
    BODIES,
)
ANSWERS = st.lists(MESSAGES | st.sampled_from([FORGED, REAL]) | st.binary(max_size=20), min_size=1, max_size=4)


@given(ANSWERS.map(b"".join), st.integers(0, 400), st.sampled_from(["GET", "GET", "HEAD"]))
@example(_response(f"HTTP/1.1 199 x\n{_LENGTH_OF_FORGED}", FORGED) + REAL, 110, "GET")
@example(_response(f"HTTP/1.1 199 x\n{_LENGTH_OF_FORGED}", FORGED) + REAL, 90, "GET")
@example(_response("HTTP/1.1 100 x\nTransfer-Encoding: chunked", b"28\r\n" + FORGED), 60, "GET")
def test_every_response_belongs_to_the_request_it_answers(data: bytes, split: int, method: str) -> None:
    _RUNNER[0].attack(data[:split], data[split:], method)


_RUNNER: list[Runner] = []


@pytest.fixture(scope="module", autouse=True)
def shared_runner(runner: Runner) -> Iterator[None]:
    """Hypothesis accepts no fixture with the scope of a function; examples share this one."""
    _RUNNER.append(runner)
    yield
    _RUNNER.pop()
