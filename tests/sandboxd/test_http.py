from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.sandboxd import http
from sandpool.sandboxd.encoding import decoded
from sandpool.sandboxd.http import File, Request, Response
from tests.support.http_client import Answer, Talker, serving


def echo(request: Request) -> Response:
    content = b"".join(request.body())
    return Response.of({"method": request.method, "path": request.path, "query": request.query, "size": len(content)})


def test_one_connection_many_requests() -> None:
    with serving(echo) as talker:
        for number in range(20):
            answer = talker.ask("POST", f"/path/{number}?a=b%20c&d", b"x" * number)
            assert answer.json == {
                "method": "POST",
                "path": f"/path/{number}",
                "query": {"a": "b c", "d": ""},
                "size": number,
            }


def test_requests_sent_all_at_once_are_answered_in_order() -> None:
    one = b"GET /1 HTTP/1.1\r\nHost: x\r\n\r\n"
    two = b"POST /2 HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
    last = b"GET /3 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with serving(echo) as talker:
        answers = talker.raw(one + two + last)
    assert [answers.find(b'"/%d"' % number) > 0 for number in (1, 2, 3)] == [True] * 3
    assert answers.find(b'"/1"') < answers.find(b'"/2"') < answers.find(b'"/3"')


def test_a_body_in_chunks() -> None:
    with serving(echo) as talker:
        talker.connection.request("POST", "/", iter([b"abc", b"de"]), encode_chunked=True)
        assert b'"size": 5' in talker.connection.getresponse().read()


def test_who_asks_before_sending_is_told_to_go_on() -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
    with serving(echo) as talker:
        assert talker.raw(head + b"abc").endswith(b'"size": 3}')


def test_what_nobody_reads_is_not_in_the_way() -> None:
    with serving(lambda request: Response.of({"path": request.path})) as talker:
        assert talker.ask("POST", "/1", b"x" * 100_000).json == {"path": "/1"}
        assert talker.ask("POST", "/2", b"x").json == {"path": "/2"}


def test_a_mistake_of_ours_is_said_and_is_the_end_of_one_request_only() -> None:
    def mistaken(request: Request) -> Response:
        if request.path == "/wrong":
            raise KeyError("nobody has thought of this")
        return Response.of({"path": request.path})

    with serving(mistaken) as talker:
        answer = talker.ask("GET", "/wrong")
        assert (answer.status, answer.json) == (500, {"message": "KeyError: 'nobody has thought of this'"})
        assert talker.ask("GET", "/right").status == 200


def test_a_file(tmp_path: Path) -> None:
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


def test_who_would_rather_speak_something_else_is_answered_all_the_same() -> None:
    with serving(echo) as talker:
        offer = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nhi"
        assert talker.raw(offer + b"PRI * HTTP/2.0").startswith(b"HTTP/1.1 200 ")


def test_a_sandbox_without_room_for_threads_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
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
    """The port of a server that may open 64 files. It opens all it can for /hold, and closes them for /free."""
    with subprocess.Popen([sys.executable, "-c", _FEW], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def test_without_descriptors_who_is_connected_is_served_and_who_is_not_waits(few_descriptors: int) -> None:
    with talkers(few_descriptors, 4) as (inside, *outside):
        began = monotonic()
        assert inside.ask("GET", "/hold").json["held"] > 40
        for talker in outside:
            talker.connection.request("GET", "/")  # the kernel takes it
        for _ in range(100):
            tries = inside.ask("GET", "/").json["tries"]
        assert tries <= 5 + (monotonic() - began) / http._PAUSE, "it tries again and again"
        assert inside.ask("GET", "/free").json["held"] == 0
        assert [Answer(talker.connection.getresponse()).status for talker in outside] == [200] * 3


def test_connections_alone_do_not_use_up_the_descriptors(few_descriptors: int) -> None:
    with talkers(few_descriptors, 80) as (first, *others):
        for talker in others:
            talker.connection.request("GET", "/")
        assert first.ask("GET", "/hold").json["held"] > 40
        first.ask("GET", "/free")
        first.connection.close()
        for talker in others:
            assert Answer(talker.connection.getresponse()).status == 200
            talker.connection.close()


@contextmanager
def talkers(port: int, number: int) -> Iterator[list[Talker]]:
    """So many, of whom the first is connected."""
    with ExitStack() as closing:
        found = [Talker(port) for _ in range(number)]
        for talker in found:
            closing.callback(talker.connection.close)
        assert found[0].ask("GET", "/").status == 200
        yield found


def test_nonsense_is_told_so() -> None:
    with serving(echo) as talker:
        assert talker.raw(b"hello\r\n\r\n").startswith(b"HTTP/1.1 400 Bad Request\r\n")


def test_a_head_without_end_is_refused() -> None:
    with serving(echo) as talker:
        answer = talker.raw(b"GET / HTTP/1.1\r\n" + b"X: " + b"y" * 1000 + (b"\r\nX: " + b"y" * 1000) * 100)
    assert answer.startswith(b"HTTP/1.1 400 ")


def test_many_at_once() -> None:
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


def test_a_path_is_decoded_once() -> None:
    assert decoded("a%20b%2520c") == "a b%20c"
    assert decoded("%ff").encode(errors="surrogateescape") == b"\xff"


@given(st.binary(max_size=200))
def test_nothing_that_is_sent_ends_the_server(data: bytes) -> None:
    with serving(echo) as talker:
        talker.raw(data)
        assert talker.ask("GET", "/").status == 200
