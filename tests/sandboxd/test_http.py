from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import monotonic

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.sandboxd import http
from sandpool.sandboxd.encoding import unquote
from sandpool.sandboxd.http import File, Request, Response
from sandpool.sandboxd.http1 import MAX_HEAD_BYTES, MAX_HEADERS
from tests.support.http_client import SandboxdResponse, Talker, serving


def echo(request: Request) -> Response:
    content = b"".join(request.body())
    return Response.of({"method": request.method, "path": request.path, "query": request.query, "size": len(content)})


def test_connection_serves_many_requests() -> None:
    with serving(echo) as talker:
        for number in range(20):
            answer = talker.ask("POST", f"/path/{number}?a=b%20c&d", b"x" * number)
            assert answer.json == {
                "method": "POST",
                "path": f"/path/{number}",
                "query": {"a": "b c", "d": ""},
                "size": number,
            }


def test_pipelined_requests_are_answered_in_order() -> None:
    one = b"GET /1 HTTP/1.1\r\nHost: x\r\n\r\n"
    two = b"POST /2 HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
    last = b"GET /3 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with serving(echo) as talker:
        answers = talker.raw(one + two + last)
    assert [answers.find(b'"/%d"' % number) > 0 for number in (1, 2, 3)] == [True] * 3
    assert answers.find(b'"/1"') < answers.find(b'"/2"') < answers.find(b'"/3"')


def test_chunked_body_is_decoded() -> None:
    with serving(echo) as talker:
        talker.connection.request("POST", "/", iter([b"abc", b"de"]), encode_chunked=True)
        assert b'"size": 5' in talker.connection.getresponse().read()


def test_expect_100_continue_is_answered() -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
    with serving(echo) as talker:
        assert talker.raw(head + b"abc").endswith(b'"size": 3}')


def test_unread_body_does_not_disturb_the_next_request() -> None:
    with serving(lambda request: Response.of({"path": request.path})) as talker:
        assert talker.ask("POST", "/1", b"x" * 100_000).json == {"path": "/1"}
        assert talker.ask("POST", "/2", b"x").json == {"path": "/2"}


def test_exception_of_a_handler_becomes_a_500_and_the_server_goes_on() -> None:
    def failing(request: Request) -> Response:
        if request.path == "/wrong":
            raise KeyError("unexpected")
        return Response.of({"path": request.path})

    with serving(failing) as talker:
        answer = talker.ask("GET", "/wrong")
        assert (answer.status, answer.json) == (500, {"message": "KeyError: 'unexpected'"})
        assert talker.ask("GET", "/right").status == 200


def test_file_is_sent_whole_and_in_part(tmp_path: Path) -> None:
    content = os.urandom(3_000_000)
    (tmp_path / "file").write_bytes(content)

    def part(request: Request) -> Response:
        handle = os.open(tmp_path / "file", os.O_RDONLY)
        return (
            Response(206, File(handle, 1000, 17))
            if request.path == "/part"
            else Response(200, File(handle, len(content)))
        )

    with serving(part) as talker:
        assert talker.ask("GET", "/").body == content
        assert talker.ask("GET", "/part").body == content[17:1017]
        headed = talker.ask("HEAD", "/")
        assert (headed.headers["content-length"], headed.body) == ("3000000", b"")


def test_upgrade_request_is_answered_as_http_1_1() -> None:
    with serving(echo) as talker:
        offer = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nhi"
        assert talker.raw(offer + b"PRI * HTTP/2.0").startswith(b"HTTP/1.1 200 ")


def test_server_survives_when_no_thread_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*about: object) -> int:
        monkeypatch.undo()
        raise RuntimeError("can't start new thread")

    with serving(echo) as talker:
        monkeypatch.setattr(http, "start_new_thread", refuse)
        with pytest.raises(ConnectionError):
            talker.ask("GET", "/")
        talker.connection.close()
        assert talker.ask("GET", "/").status == 200


_FEW = """
import os, resource, socket, sys
from sandpool.sandboxd.http import Response, Server

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []

class Listening(socket.socket):
    tries = 0

    def _accept(self):
        Listening.tries += 1
        return super()._accept()

def answer(request):
    try:
        while request.path == "/hold":
            held.append(os.dup(0))
    except OSError:
        pass
    while request.path == "/free" and held:
        os.close(held.pop())
    return Response.of({"held": len(held), "tries": Listening.tries})

listening = Listening()
listening.bind(("127.0.0.1", 0))
listening.listen(128)
print(listening.getsockname()[1], flush=True)
Server(listening, answer).serve()
"""


@pytest.fixture
def few_descriptors() -> Iterator[int]:
    """The port of a server limited to 64 descriptors. /hold makes it open all it can, /free closes them."""
    with subprocess.Popen([sys.executable, "-c", _FEW], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def test_without_free_descriptors_open_connections_are_served_and_new_ones_wait(few_descriptors: int) -> None:
    with talkers(few_descriptors, 4) as (inside, *outside):
        began = monotonic()
        assert inside.ask("GET", "/hold").json["held"] > 40
        for talker in outside:
            talker.connection.request("GET", "/")  # waits in the backlog of the kernel
        for _ in range(100):
            tries = inside.ask("GET", "/").json["tries"]
        assert tries <= 5 + (monotonic() - began) / http._ACCEPT_RETRY_SECONDS, "accept() is retried without a pause"
        assert inside.ask("GET", "/free").json["held"] == 0
        assert [SandboxdResponse(talker.connection.getresponse()).status for talker in outside] == [200] * 3


def test_connections_alone_do_not_exhaust_the_descriptors(few_descriptors: int) -> None:
    with talkers(few_descriptors, 80) as (first, *others):
        for talker in others:
            talker.connection.request("GET", "/")
        assert first.ask("GET", "/hold").json["held"] > 40
        first.ask("GET", "/free")
        first.connection.close()
        for talker in others:
            assert SandboxdResponse(talker.connection.getresponse()).status == 200
            talker.connection.close()


@contextmanager
def talkers(port: int, number: int) -> Iterator[list[Talker]]:
    """Clients of one server, of which the first is connected."""
    with ExitStack() as closing:
        found = [Talker(port) for _ in range(number)]
        for talker in found:
            closing.callback(talker.connection.close)
        assert found[0].ask("GET", "/").status == 200
        yield found


def test_bytes_that_are_not_http_get_a_400() -> None:
    with serving(echo) as talker:
        assert talker.raw(b"hello\r\n\r\n").startswith(b"HTTP/1.1 400 Bad Request\r\n")


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"GET / HTTP/1.1\r\n" + (b"X: " + b"y" * 1000 + b"\r\n") * 100, id="many-lines"),
        pytest.param(b"GET / HTTP/1.1\r\nX: " + b"y" * MAX_HEAD_BYTES, id="one-value"),
        pytest.param(b"GET /" + b"y" * MAX_HEAD_BYTES, id="target"),
        pytest.param(b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * (MAX_HEADERS + 1) + b"\r\n", id="more-lines-than-allowed"),
    ],
)
def test_oversized_head_is_rejected_before_it_ends(head: bytes) -> None:
    with serving(echo) as talker:
        assert talker.raw(head, half_close=False).startswith(b"HTTP/1.1 431 ")


def test_head_of_the_maximal_size_is_accepted() -> None:
    rest = b"GET / HTTP/1.1\r\nConnection: close\r\nX: \r\n\r\n"
    filler = b"y" * (MAX_HEAD_BYTES - len(rest))
    with serving(echo) as talker:
        assert talker.raw(rest.replace(b"X: ", b"X: " + filler)).startswith(b"HTTP/1.1 200 ")
        assert talker.raw(rest.replace(b"X: ", b"X: y" + filler)).startswith(b"HTTP/1.1 431 ")


def test_incomplete_head_times_out_although_bytes_keep_arriving() -> None:
    with (
        serving(echo, head_seconds=0.3) as talker,
        socket.create_connection(("127.0.0.1", talker.port), timeout=60) as client,
    ):
        client.sendall(b"GET / HTTP/1.1\r\nX: ")
        client.settimeout(0.01)
        answer = b""
        while not answer:
            client.sendall(b"y")
            with suppress(TimeoutError):
                answer = client.recv(4096)
    assert answer.startswith(b"HTTP/1.1 408 ")


def test_time_limit_of_a_head_does_not_apply_to_the_next_body() -> None:
    with (
        serving(echo, head_seconds=0.2) as talker,
        socket.create_connection(("127.0.0.1", talker.port), timeout=60) as client,
    ):
        client.sendall(b"POST / HTTP/1.1\r\nContent-Length: 2\r\nConnection: close")
        client.sendall(b"\r\n\r\na")
        client.settimeout(0.5)
        with pytest.raises(TimeoutError):
            client.recv(1)
        client.sendall(b"b")
        assert b'"size": 2' in client.recv(4096)


def test_concurrent_connections_are_all_answered() -> None:
    answers: list[int] = []
    with serving(echo) as talker:

        def ask() -> None:
            answers.append(len(talker.raw(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")))

        threads = [threading.Thread(target=ask) for _ in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(answers) == 50
    assert all(answers)


def test_unquote_decodes_a_path_once() -> None:
    assert unquote("a%20b%2520c") == "a b%20c"
    assert unquote("%ff").encode(errors="surrogateescape") == b"\xff"


@given(st.binary(max_size=200))
def test_server_survives_arbitrary_bytes(data: bytes) -> None:
    with serving(echo) as talker:
        talker.raw(data)
        assert talker.ask("GET", "/").status == 200
