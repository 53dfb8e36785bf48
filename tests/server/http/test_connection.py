"""Requests over a raw socket: order, framing, refusals, deadlines, disconnects."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING

import pytest

from sandpool.kube.errors import ApiError, NotFound, TooManyRequests
from sandpool.server.http import HttpLimits
from sandpool.server.http.connection import Connection
from sandpool.server.http.reader import BODY, HEAD, RequestReader
from sandpool.server.request.messages import Response, ServerRequest, Upgrade, WatchLine, WatchStream
from tests.support.garbage import freed_at_once

if TYPE_CHECKING:
    from tests.server.http.conftest import Bench

MakeBench = Callable[..., "Awaitable[Bench]"]


async def test_request_is_answered(bench: Bench) -> None:
    wire = await bench.connect()
    wire.request("GET", "/api/v1/pods?labelSelector=a%3Db&labelSelector=ignored&watch=&limit=5")
    answer = await wire.answer()
    assert answer.status == 200
    assert answer.json["path"] == "/api/v1/pods"
    assert answer.json["query"] == {"labelSelector": "a=b", "watch": "", "limit": "5"}
    assert answer.json["user"] == "admin"
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-cache, private"
    assert answer.headers["date"] == "Thu, 01 Jan 2026 00:00:00 GMT"
    assert "connection" not in answer.headers
    request = bench.handler.requests[0]
    assert (request.raw_query, request.source) == (
        "labelSelector=a%3Db&labelSelector=ignored&watch=&limit=5",
        "127.0.0.1",
    )


async def test_connection_is_kept_for_further_requests(bench: Bench) -> None:
    wire = await bench.connect()
    ids = set()
    for number in range(3):
        wire.request("POST", f"/{number}", body=b"x" * number)
        answer = await wire.answer()
        assert answer.json["path"] == f"/{number}"
        assert answer.json["body"] == "x" * number
        ids.add(answer.headers["audit-id"])
    assert len(ids) == 3


async def test_request_can_arrive_byte_by_byte(bench: Bench) -> None:
    wire = await bench.connect()
    message = b"POST /a?b=c HTTP/1.1\r\nHost: h\r\nauthorization: Bearer secret\r\nContent-Length: 4\r\n\r\nbody"
    for position in range(len(message)):
        wire.send(message[position : position + 1])
        await asyncio.sleep(0)
    answer = await wire.answer()
    assert (answer.json["path"], answer.json["body"]) == ("/a", "body")


async def test_pipelined_requests_are_answered_in_order(bench: Bench) -> None:
    gate = asyncio.Event()

    async def slow(request: ServerRequest) -> Response:
        await gate.wait()
        return Response(object="slow")

    bench.handler.routes["/slow"] = slow
    wire = await bench.connect()
    wire.request("GET", "/slow")
    for number in range(20):
        wire.request("PUT", f"/{number}", body=b"b")
    await bench.until(lambda: bool(bench.handler.requests))
    await bench.settle()
    assert len(bench.handler.requests) == 1, "the second must not start before the first is answered"
    gate.set()
    assert (await wire.answer()).json == "slow"
    assert [(await wire.answer()).json["path"] for _ in range(20)] == [f"/{number}" for number in range(20)]
    wire.request("GET", "/after")
    assert (await wire.answer()).json["path"] == "/after", "reading resumes when the queue is empty"


async def test_chunked_bodies_are_read(bench: Bench) -> None:
    wire = await bench.connect()
    wire.request("POST", "/x", "Transfer-Encoding: chunked")
    for piece in (b"5;ext=1\r\nhello\r\n", b"1", b"\r\n!", b"\r\n0\r\nTrailer: x\r\n\r\n"):
        wire.send(piece)
        await bench.settle()
    assert (await wire.answer()).json["body"] == "hello!"


async def test_trailers_cannot_add_headers(bench: Bench) -> None:
    wire = await bench.connect()
    wire.request("POST", "/x", "Transfer-Encoding: chunked", "X-A: 1")
    wire.send(b"0\r\nX-A: 2\r\nImpersonate-User: bob\r\nX-B: 3\r\n\r\n")
    assert (await wire.answer()).json["user"] == "admin"
    assert bench.handler.requests[0].headers["x-a"] == "1"
    assert "x-b" not in bench.handler.requests[0].headers


async def test_repeated_headers_are_joined(bench: Bench) -> None:
    wire = await bench.connect()
    wire.request("GET", "/x", "Accept: application/json", "ACCEPT: */*", "X-Name: ä")
    assert (await wire.answer()).status == 200
    assert bench.handler.requests[0].headers["accept"] == "application/json, */*"


async def test_expect_continue_is_answered(bench: Bench) -> None:
    wire = await bench.connect()
    wire.request("POST", "/x", "Expect: 100-continue", "Content-Length: 2")
    assert (await wire.head())[0] == 100
    wire.send(b"ok")
    assert (await wire.answer()).json["body"] == "ok"


async def test_expect_continue_waits_for_the_previous_response(bench: Bench) -> None:
    gate = asyncio.Event()

    async def slow(request: ServerRequest) -> Response:
        await gate.wait()
        return Response(object="slow")

    bench.handler.routes["/slow"] = slow
    wire = await bench.connect()
    wire.request("GET", "/slow")
    wire.request("POST", "/x", "Expect: 100-continue", "Content-Length: 2")
    await bench.until(lambda: bool(bench.handler.requests))
    gate.set()
    assert (await wire.answer()).json == "slow"
    assert (await wire.head())[0] == 100
    wire.send(b"ok")
    assert (await wire.answer()).json["body"] == "ok"


async def test_other_expectations_are_rejected(bench: Bench) -> None:
    wire = await bench.connect()
    wire.request("POST", "/x", "Expect: magic", "Content-Length: 2")
    assert (await wire.answer()).status == 417


async def test_response_to_head_has_no_body(bench: Bench) -> None:
    wire = await bench.connect()
    wire.request("HEAD", "/x")
    answer = await wire.answer(bodiless=True)
    assert int(answer.headers["content-length"]) > 0
    wire.request("GET", "/next")
    assert (await wire.answer()).json["path"] == "/next"


async def test_http_1_0_is_served(bench: Bench) -> None:
    wire = await bench.connect()
    wire.send(b"GET /x HTTP/1.0\r\nAuthorization: Bearer secret\r\nConnection: keep-alive\r\n\r\n")
    assert (await wire.answer()).headers["connection"] == "keep-alive"
    wire.send(b"GET /x HTTP/1.0\r\nAuthorization: Bearer secret\r\n\r\n")
    assert (await wire.answer()).headers["connection"] == "close"
    assert await wire.rest() == b""


async def test_connection_close_is_honoured(bench: Bench) -> None:
    wire = await bench.connect()
    wire.request("GET", "/x", "Connection: close")
    assert (await wire.answer()).headers["connection"] == "close"
    assert await wire.rest() == b""


async def test_unsupported_upgrade_is_an_ordinary_request(bench: Bench) -> None:
    wire = await bench.connect()
    wire.request("GET", "/x", "Connection: Upgrade", "Upgrade: h2c", "HTTP2-Settings: AAAA")
    wire.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    answer = await wire.answer()
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    assert await wire.rest() == b""


async def test_upgrade_after_a_disconnect_is_abandoned(bench: Bench) -> None:
    """The handler that offers it may hold resources for it."""
    begun, go, abandoned = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def run(wire: object) -> None:
        raise AssertionError("the client is gone")

    async def offer(request: ServerRequest) -> Response:
        begun.set()
        await go.wait()
        return Response(101, upgrade=Upgrade(run, abandoned.set))

    bench.handler.routes["/x"] = offer
    wire = await bench.connect()
    wire.request("POST", "/x", "Connection: Upgrade", "Upgrade: other")
    await begun.wait()
    stopping = asyncio.create_task(bench.server.stop())
    await bench.settle()
    go.set()
    await abandoned.wait()
    await stopping
    assert await wire.rest() == b""


# -- errors ------------------------------------------------------------------------------------------------------------


async def test_api_errors_become_status_responses(bench: Bench) -> None:
    async def missing(request: ServerRequest) -> Response:
        raise NotFound('pods "x" not found', details={"name": "x", "kind": "pods"})

    async def busy(request: ServerRequest) -> Response:
        raise TooManyRequests("later", details={"retryAfterSeconds": 3})

    bench.handler.routes.update({"/missing": missing, "/busy": busy})
    wire = await bench.connect()
    wire.request("GET", "/missing")
    answer = await wire.answer()
    assert answer.status == 404
    assert answer.json == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": 'pods "x" not found',
        "reason": "NotFound",
        "details": {"name": "x", "kind": "pods"},
        "code": 404,
    }
    wire.request("GET", "/busy")
    answer = await wire.answer()
    assert (answer.status, answer.headers["retry-after"]) == (429, "3")


async def test_unexpected_errors_leak_nothing(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    async def broken(request: ServerRequest) -> Response:
        raise ValueError("the password is hunter2")

    bench.handler.routes["/broken"] = broken
    wire = await bench.connect()
    wire.request("GET", "/broken")
    answer = await wire.answer()
    assert (answer.status, answer.json["reason"]) == (500, "InternalError")
    assert b"hunter2" not in answer.body
    assert answer.headers["audit-id"] in answer.json["message"]
    assert "hunter2" in caplog.text, "the log has the cause"
    wire.request("GET", "/x")
    assert (await wire.answer()).status == 200


async def test_response_that_cannot_be_encoded_is_a_500(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    async def strange(request: ServerRequest) -> Response:
        return Response(object={"a": object()})

    bench.handler.routes["/strange"] = strange
    wire = await bench.connect()
    wire.request("GET", "/strange")
    assert (await wire.answer()).status == 500
    assert "not JSON serializable" in caplog.text


async def test_response_that_cannot_be_sent_closes_the_connection(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    async def not_json(request: ServerRequest) -> Response:
        return Response(encoded=b"{")

    bench.handler.routes["/not-json"] = not_json
    wire = await bench.connect()
    wire.request("GET", "/not-json?pretty=true")
    assert await wire.rest() == b""
    await bench.until(lambda: not bench.server._connections)
    assert "sending the response to request" in caplog.text


async def test_cancellation_inside_the_handler_is_a_500(bench: Bench) -> None:
    async def cancelled(request: ServerRequest) -> Response:
        raise asyncio.CancelledError

    bench.handler.routes["/cancelled"] = cancelled
    wire = await bench.connect()
    wire.request("GET", "/cancelled")
    assert (await wire.answer()).status == 503


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nBad Header\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nAuthorization: Bearer secret\r\n\r\n", 400),
        (b"GET /%zz HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer secret\r\n\r\n", 400),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer secret\r\n\r\n", 400),
        (
            b"POST /x HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer secret\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            400,
        ),
    ],
)
async def test_malformed_requests_are_rejected_and_close_the_connection(bench: Bench, sent: bytes, status: int) -> None:
    wire = await bench.connect()
    wire.send(sent)
    answer = await wire.answer()
    assert (answer.status, answer.json["kind"], answer.headers["connection"]) == (status, "Status", "close")
    assert "audit-id" in answer.headers
    assert await wire.rest() == b""
    assert not bench.handler.requests


async def test_rejection_waits_for_earlier_responses(bench: Bench) -> None:
    wire = await bench.connect()
    wire.request("GET", "/first")
    wire.send(b"nonsense\r\n\r\n")
    assert (await wire.answer()).json["path"] == "/first"
    assert (await wire.answer()).status == 400
    assert await wire.rest() == b""


# -- limits ------------------------------------------------------------------------------------------------------------


async def test_body_at_the_limit_is_accepted(bench: Bench) -> None:
    wire = await bench.connect()
    body = b"x" * (3 * 1024 * 1024)
    wire.request("POST", "/x", body=body)
    await wire.answer()
    assert len(bench.handler.requests[0].body) == len(body)


async def test_body_over_the_limit_is_rejected_before_it_is_sent(bench: Bench) -> None:
    wire = await bench.connect()
    wire.request("POST", "/x", "Content-Length: 3145729")
    answer = await wire.answer()
    assert answer.status == 413
    assert answer.json["message"] == "Request entity too large: limit is 3145728"
    assert answer.json["reason"] == "RequestEntityTooLarge"


async def test_rejection_reaches_a_client_that_keeps_sending(bench: Bench) -> None:
    wire = await bench.connect()
    wire.request("POST", "/x", body=b"x" * 6_000_000)
    assert (await wire.answer()).status == 413


async def test_chunked_body_over_the_limit_is_rejected(make_bench: MakeBench, small_limits: HttpLimits) -> None:
    bench = await make_bench(limits=small_limits)
    wire = await bench.connect()
    wire.request("POST", "/x", "Transfer-Encoding: chunked")
    wire.send(b"1f4\r\n" + b"x" * 500 + b"\r\n")
    await bench.settle()
    wire.send(b"1f5\r\n" + b"x" * 501 + b"\r\n")
    assert (await wire.answer()).status == 413
    assert not bench.handler.requests


async def test_chunk_framing_counts_towards_the_limit(make_bench: MakeBench, small_limits: HttpLimits) -> None:
    bench = await make_bench(limits=small_limits)
    wire = await bench.connect()
    wire.request("POST", "/x", "Transfer-Encoding: chunked")
    for _ in range(10):
        wire.send(b"1;" + b"e" * 1000 + b"\r\nx\r\n")
        await bench.settle()
    assert (await wire.answer()).status == 413


@pytest.mark.parametrize("pieces", [1, 30])
async def test_head_over_the_limit_is_rejected(make_bench: MakeBench, small_limits: HttpLimits, pieces: int) -> None:
    bench = await make_bench(limits=small_limits)
    wire = await bench.connect()
    head = b"GET /x HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer secret\r\nX: " + b"y" * 3000 + b"\r\n\r\n"
    step = len(head) // pieces + 1
    for start in range(0, len(head), step):
        wire.send(head[start : start + step])
        await bench.settle()
    assert (await wire.answer()).status == 431
    assert not bench.handler.requests


async def test_endless_head_is_rejected(make_bench: MakeBench, small_limits: HttpLimits) -> None:
    bench = await make_bench(limits=small_limits)
    wire = await bench.connect()
    wire.send(b"GET /x HTTP/1.1\r\nX: ")
    for _ in range(10):
        wire.send(b"y" * 300)
        await bench.settle()
    assert (await wire.answer()).status == 431


async def test_large_head_before_a_large_body_is_measured_exactly(make_bench: MakeBench) -> None:
    bench = await make_bench(limits=HttpLimits(head=2000))
    wire = await bench.connect()
    wire.request("POST", "/x", "X: " + "y" * 1000, body=b"z" * 100_000)
    assert (await wire.answer()).status == 200


async def test_connections_over_the_limit_are_rejected(make_bench: MakeBench, small_limits: HttpLimits) -> None:
    bench = await make_bench(limits=small_limits)
    wires = [await bench.connect() for _ in range(small_limits.connections)]
    for wire in wires:  # who has not authenticated would make room
        wire.request()
        assert (await wire.answer()).status == 200
    extra = await bench.connect()
    answer = await extra.answer()
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert await extra.rest() == b""
    await extra.close()
    wires[0].request()
    assert (await wires[0].answer()).status == 200


# -- deadlines ---------------------------------------------------------------------------------------------------------


async def test_idle_connection_is_closed(bench: Bench) -> None:
    wire = await bench.connect()
    wire.request()
    await wire.answer()
    bench.pass_time(119)
    wire.request()
    assert (await wire.answer()).status == 200, "a request begins a new idle period"
    bench.pass_time(119)
    wire.request()
    assert (await wire.answer()).status == 200
    bench.pass_time(121)
    assert await wire.rest() == b""


async def test_silent_client_is_closed(bench: Bench) -> None:
    wire = await bench.connect()
    await bench.until(lambda: len(bench.server._connections) == 1)
    bench.pass_time(31)
    assert await wire.rest() == b""


async def test_slow_head_times_out(bench: Bench) -> None:
    wire = await bench.connect()
    wire.send(b"GET / HT")
    await bench.until(lambda: any(c._reader.stage is HEAD for c in bench.server._connections))
    bench.pass_time(20)
    wire.send(b"TP/1.1\r\n")
    await asyncio.sleep(0.01)
    bench.pass_time(11)
    answer = await wire.answer()
    assert (answer.status, answer.json["reason"]) == (408, "Timeout")
    assert await wire.rest() == b""


async def test_slow_body_times_out(bench: Bench) -> None:
    wire = await bench.connect()
    wire.request("POST", "/x", "Content-Length: 10")
    wire.send(b"12345")
    await bench.until(lambda: any(c._reader.stage is BODY for c in bench.server._connections))
    bench.pass_time(59)
    wire.send(b"6")
    await bench.settle()
    bench.pass_time(2)
    assert (await wire.answer()).status == 408
    assert not bench.handler.requests


async def test_lingering_connection_is_closed(bench: Bench) -> None:
    wire = await bench.connect()
    wire.send(b"nonsense\r\n\r\n")
    assert (await wire.answer()).status == 400
    assert len(bench.server._connections) == 1, "it waits for the client to close"
    bench.pass_time(6)
    await bench.until(lambda: not bench.server._connections)


async def test_slow_handler_has_no_deadline(bench: Bench) -> None:
    gate = asyncio.Event()

    async def slow(request: ServerRequest) -> Response:
        await gate.wait()
        return Response(object="slow")

    bench.handler.routes["/slow"] = slow
    wire = await bench.connect()
    wire.request("GET", "/slow")
    await bench.until(lambda: bool(bench.handler.requests))
    bench.pass_time(100_000)
    gate.set()
    assert (await wire.answer()).json == "slow"


async def test_client_that_does_not_read_is_dropped(make_bench: MakeBench, small_limits: HttpLimits) -> None:
    async def large(request: ServerRequest) -> Response:
        return Response(encoded=b"x" * 16_000_000)

    bench = await make_bench(limits=small_limits)
    bench.handler.routes["/large"] = large
    wire = await bench.connect()
    wire.stop_reading()
    wire.request("GET", "/large")
    await bench.until(lambda: any(each._writer.blocked for each in bench.server._connections))
    (connection,) = bench.server._connections
    assert connection._transport.get_write_buffer_size() < 1_000_000, "a slow reader holds one piece, not the response"
    bench.pass_time(61)
    await bench.until(lambda: not bench.server._connections)


# -- disconnects -------------------------------------------------------------------------------------------------------


async def test_lost_connection_is_freed_without_the_garbage_collector(bench: Bench) -> None:
    async def use_one() -> None:
        wire = await bench.connect()
        wire.request()
        await wire.answer()
        await wire.close()

    await freed_at_once(use_one, Connection, RequestReader)


@pytest.mark.parametrize(("method", "finishes"), [("GET", False), ("POST", True), ("PATCH", True), ("DELETE", True)])
async def test_disconnect_cancels_reads_and_not_writes(bench: Bench, method: str, finishes: bool) -> None:
    gate = asyncio.Event()
    outcome: list[str] = []

    async def work(request: ServerRequest) -> Response:
        try:
            await gate.wait()
        except asyncio.CancelledError:
            outcome.append("cancelled")
            raise
        outcome.append("finished")
        return Response(object={})

    bench.handler.routes["/work"] = work
    wire = await bench.connect()
    wire.request(method, "/work")
    await bench.until(lambda: bool(bench.handler.requests))
    wire.abort()
    await bench.until(lambda: not bench.server._connections)
    gate.set()
    await bench.until(lambda: bool(outcome))
    assert outcome == (["finished"] if finishes else ["cancelled"])


async def test_small_responses_do_not_wait_for_acknowledgements(bench: Bench) -> None:
    wire = await bench.connect()
    wire.request()
    await wire.answer()
    (connection,) = bench.server._connections
    accepted = connection._transport.get_extra_info("socket")
    assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


# -- watches -----------------------------------------------------------------------------------------------------------


class Watched:
    """A watch the test feeds, and that knows whether it was closed."""

    def __init__(self) -> None:
        self.batches: asyncio.Queue[list[WatchLine] | Exception | None] = asyncio.Queue()
        self.taken = 0
        self.closed = False

    async def answer(self, request: ServerRequest) -> Response:
        return Response(stream=WatchStream(self.events(), lambda: self.batches.put_nowait(None)))

    async def events(self) -> AsyncGenerator[list[WatchLine], None]:
        try:
            while (batch := await self.batches.get()) is not None:
                self.taken += 1
                if isinstance(batch, Exception):
                    raise batch
                yield batch
        finally:
            self.closed = True


def added(name: str) -> WatchLine:
    return WatchLine("ADDED", None, b'{"metadata":{"name":"%b"}}' % name.encode())


async def test_watch_sends_a_line_per_event_and_a_chunk_per_batch(bench: Bench) -> None:
    watched = Watched()
    bench.handler.routes["/watch"] = watched.answer
    wire = await bench.connect()
    wire.request("GET", "/watch")
    status, headers = await wire.head()
    assert (status, headers["transfer-encoding"], headers["content-type"]) == (200, "chunked", "application/json")
    watched.batches.put_nowait([added("a"), added("b")])
    assert await wire.chunk() == (
        b'{"type":"ADDED","object":{"metadata":{"name":"a"}}}\n{"type":"ADDED","object":{"metadata":{"name":"b"}}}\n'
    )
    watched.batches.put_nowait([])
    watched.batches.put_nowait([added("c")])
    assert b'"c"' in await wire.chunk()
    watched.batches.put_nowait(None)
    assert await wire.chunk() == b""
    assert watched.closed
    wire.request("GET", "/x")
    assert (await wire.answer()).status == 200, "the connection outlives the watch"


async def test_error_in_a_watch_is_its_last_event(bench: Bench) -> None:
    watched = Watched()
    bench.handler.routes["/watch"] = watched.answer
    wire = await bench.connect()
    wire.request("GET", "/watch")
    watched.batches.put_nowait(ApiError("too old", code=410, reason="Expired"))
    answer = await wire.answer()
    assert answer.json["type"] == "ERROR"
    assert (answer.json["object"]["code"], answer.json["object"]["reason"]) == (410, "Expired")


async def test_unexpected_error_in_a_watch_leaks_nothing(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    bench.handler.routes["/watch"] = watched.answer
    wire = await bench.connect()
    wire.request("GET", "/watch")
    watched.batches.put_nowait(ValueError("hunter2"))
    answer = await wire.answer()
    assert (answer.json["type"], answer.json["object"]["code"]) == ("ERROR", 500)
    assert b"hunter2" not in answer.body
    assert "hunter2" in caplog.text


@pytest.mark.parametrize("way", ["abort", "half_close", "close"])
async def test_disconnect_ends_the_watch(bench: Bench, way: str) -> None:
    watched = Watched()
    bench.handler.routes["/watch"] = watched.answer
    wire = await bench.connect()
    wire.request("GET", "/watch")
    await wire.head()
    if way == "close":
        await wire.close()
    else:
        getattr(wire, way)()
    await bench.until(lambda: watched.closed)


async def test_slow_reader_holds_its_watch_back(make_bench: MakeBench, small_limits: HttpLimits) -> None:
    bench = await make_bench(limits=small_limits)
    watched = Watched()
    bench.handler.routes["/watch"] = watched.answer
    wire = await bench.connect()
    wire.request("GET", "/watch")
    await wire.head()
    wire.stop_reading()
    large = WatchLine("ADDED", None, b'"' + b"x" * 1_000_000 + b'"')
    for _ in range(100):
        watched.batches.put_nowait([large])
    await bench.until(lambda: any(c._writer.blocked for c in bench.server._connections))
    await bench.settle()
    assert watched.taken < 100, "what the client does not read is not taken"
    bench.pass_time(61)
    await bench.until(lambda: watched.closed)


async def test_watch_over_http_1_0_ends_with_the_connection(bench: Bench) -> None:
    watched = Watched()
    bench.handler.routes["/watch"] = watched.answer
    wire = await bench.connect()
    wire.send(b"GET /watch HTTP/1.0\r\nAuthorization: Bearer secret\r\n\r\n")
    _, headers = await wire.head()
    assert "transfer-encoding" not in headers
    watched.batches.put_nowait([added("a")])
    watched.batches.put_nowait(None)
    assert await wire.rest() == b'{"type":"ADDED","object":{"metadata":{"name":"a"}}}\n'


async def test_random_bytes_neither_crash_nor_hang_the_server(bench: Bench) -> None:
    dice = random.Random(20261116)
    pieces = [b"GET ", b"POST ", b"/x", b" HTTP/1.1", b"\r\n", b"Host: a", b"Authorization: Bearer secret"]
    pieces += [b"Content-Length: 3", b"Transfer-Encoding: chunked", b"Upgrade: x", b"Connection: upgrade", b"\r\n\r\n"]
    for _ in range(60):
        wire = await bench.connect()
        for _ in range(dice.randrange(12)):
            wire.send(dice.choice(pieces) if dice.random() < 0.8 else dice.randbytes(dice.randrange(40)))
        await wire.close()
    sound = await bench.connect()
    sound.request()
    assert (await sound.answer()).status == 200
    await sound.close()
    await bench.until(lambda: not bench.server._connections)
