"""The owner of the client's socket, as the kernel knows it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from ipaddress import ip_address

import pytest

from sandpool.router.peer_owner import LoopbackOwner, socket_owner

_CONNECT = """
import encodings.idna, os, socket, sys
os.setuid(int(sys.argv[2]))
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
sys.stdin.read()
"""


@pytest.fixture(params=["127.0.0.1", "::1"])
def listener(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with socket.create_server((request.param, 0), family=family) as listener:
        yield listener


def test_own_connection_is_trusted(listener: socket.socket) -> None:
    with ExitStack() as stack:
        client = stack.enter_context(socket.create_connection(listener.getsockname()[:2]))
        accepted, peer = listener.accept()
        stack.enter_context(accepted)
        assert LoopbackOwner({os.getuid()})(peer, accepted.getsockname())
        assert not LoopbackOwner({os.getuid() + 1})(peer, accepted.getsockname())
        client.close()
        assert not LoopbackOwner({os.getuid()})(peer, accepted.getsockname()), "no process holds the client's end"


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_connection_of_another_user_is_not_trusted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, "-c", _CONNECT, str(listener.getsockname()[1]), "4321"]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
            listener.settimeout(60)
            accepted, peer = listener.accept()
            with accepted:
                local = accepted.getsockname()
                assert not LoopbackOwner({0})(peer, local)
                assert LoopbackOwner({4321})(peer, local)
            process.communicate()


def test_listening_socket_is_not_taken_for_the_client() -> None:
    """The kernel answers with a listener where no connection matches."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        home = ip_address("127.0.0.1")
        assert socket_owner((home, listener.getsockname()[1]), (home, 9)) is None


@pytest.mark.parametrize(
    ("peer", "local"), [("10.0.0.1", "127.0.0.1"), ("127.0.0.1", "10.0.0.1"), ("fe80::1%1", "::1")]
)
def test_other_addresses_than_loopback_are_not_trusted(peer: str, local: str) -> None:
    assert not LoopbackOwner({os.getuid()})((peer, 1), (local, 2))
