from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.sandboxd import http
from sandpool.sandboxd.encoding import decoded
from sandpool.sandboxd.http import File, Request, Response
from sandpool.testing.talking import serving


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
