"""The binding of a sandbox to one claim, and the port that takes it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from sandpool.kube import late_binding
from sandpool.sandboxd import binding
from sandpool.sandboxd.binding import Binding


def bind(claim: str = "claim-1", values: Any = None, **more: Any) -> bytes:
    return json.dumps({"bind": {"claim": claim, "values": {"A": "1"} if values is None else values, **more}}).encode()


def recall(key: str) -> bytes:
    return json.dumps({"recall": key}).encode()


def test_first_claim_binds() -> None:
    environ = {"PATH": "/bin", "A": "of the image"}
    bound = Binding(environ)
    assert bound.answer(bind(values={"A": "1", "B": "ü\n="})) == {"claim": "claim-1", "first": True}
    assert environ == {"PATH": "/bin", "A": "1", "B": "ü\n="}


def test_claim_that_asks_again_is_acknowledged_and_its_first_values_stay() -> None:
    environ: dict[str, str] = {}
    bound = Binding(environ)
    bound.answer(bind())
    assert bound.answer(bind(values={"A": "2", "B": "3"})) == {"claim": "claim-1", "first": False}
    assert environ == {"A": "1"}


def test_another_claim_is_refused() -> None:
    environ: dict[str, str] = {}
    bound = Binding(environ)
    bound.answer(bind())
    assert bound.answer(bind("claim-2", {"A": "theirs"}))["error"] == "BoundToAnother"
    assert environ == {"A": "1"}


@pytest.mark.parametrize(
    "values", [[], "A=1", {"A": 1}, {"": "1"}, {"A=B": "1"}, {"A": "\0"}, {"A\0": ""}, {"A": "\ud800"}], ids=repr
)
def test_values_that_no_environment_can_have_are_refused_and_bind_nothing(values: Any) -> None:
    environ: dict[str, str] = {}
    bound = Binding(environ)
    assert bound.answer(bind(values=values))["error"] == "Invalid"
    assert environ == {}
    assert bound.answer(bind("claim-2")) == {"claim": "claim-2", "first": True}


@pytest.mark.parametrize("line", [b"", b"nope", b"[]", b"{}", b'{"bind": 1}', b'{"recall": 1}', b'{"bind": {}}'])
def test_other_messages_are_refused(line: bytes) -> None:
    assert Binding({}).answer(line)["error"] == "Invalid"


def test_values_are_recalled_only_with_the_key_of_the_first_request() -> None:
    bound = Binding({})
    assert bound.answer(recall(""))["error"] == "Denied"
    bound.answer(bind(key="k1"))
    bound.answer(bind(key="k2"))
    for wrong in ("", "k", "k2", "\udcff"):
        assert bound.answer(recall(wrong))["error"] == "Denied"
    assert bound.answer(recall("k1")) == {"claim": "claim-1", "values": {"A": "1"}}


def test_without_a_key_nothing_is_recalled() -> None:
    bound = Binding({})
    bound.answer(bind())
    assert bound.answer(recall(""))["error"] == "Denied"


def test_port_is_the_one_that_controllers_use() -> None:
    assert (binding.PORT, binding.MAX_BYTES) == (late_binding.PORT, late_binding.MAX_BYTES)


@pytest.fixture
def port() -> Iterator[int]:
    listening = binding.serve(Binding({}), 0)
    assert listening is not None
    yield listening.getsockname()[1]
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()


def ask(port: int, *pieces: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as sock, sock.makefile("rb") as answers:
        for piece in pieces:
            sock.sendall(piece)
        return answers.readline()


def test_port_answers_each_line(port: int) -> None:
    line = bind()
    assert json.loads(ask(port, line[:10], line[10:] + b"\n")) == {"claim": "claim-1", "first": True}
    assert json.loads(ask(port, line + b"\n")) == {"claim": "claim-1", "first": False}


def test_first_line_that_is_no_request_ends_the_connection(port: int) -> None:
    """Or a web page, or a program in the sandbox that fetches what it is told, could bind by the body of a POST."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as sock, sock.makefile("rb") as answers:
        sock.sendall(b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: text/plain\r\n\r\n")
        assert json.loads(answers.readline())["error"] == "Invalid"
        with suppress(ConnectionResetError, BrokenPipeError):
            sock.sendall(bind("of the page") + b"\n")
            assert answers.readline() == b""
    assert json.loads(ask(port, bind() + b"\n")) == {"claim": "claim-1", "first": True}


def test_port_outlives_clients_that_send_too_much_or_nothing(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=30):
        pass
    too_long = socket.create_connection(("127.0.0.1", port), timeout=30)
    with too_long, pytest.raises((ConnectionResetError, BrokenPipeError)):
        for _ in range(100):
            too_long.sendall(b"x" * (1 << 20))
    assert b"first" in ask(port, bind() + b"\n")


def test_port_is_on_the_loopback_interface_only(port: int) -> None:
    """127.0.0.2 is on the same interface; a socket that is bound to all addresses would accept it."""
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.2", port), timeout=30):
        pass


def test_taken_port_is_left_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert binding.serve(Binding({}), taken.getsockname()[1]) is None


def test_values_are_in_the_environment_of_children_and_not_in_that_of_the_process() -> None:
    script = """
import os, sys
from sandpool.sandboxd import commands
from sandpool.sandboxd.binding import Binding
assert "error" not in Binding(os.environ).answer(sys.argv[1].encode())
print(commands.run(["/bin/sh", "-c", "echo $CANARY"], "/").stdout.decode(), end="")
print(b"yellow" in open("/proc/self/environ", "rb").read())
"""
    # The canary is assembled here, so that it is not in the command line either.
    command = [sys.executable, "-c", script.replace("sys.argv[1].encode()", "sys.stdin.buffer.read()")]
    done = subprocess.run(command, input=bind(values={"CANARY": "yellow"}), capture_output=True, check=True)
    assert done.stdout == b"yellow\nFalse\n"
