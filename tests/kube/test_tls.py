from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from sandpool.engine.clock import SystemClock
from sandpool.kube.connection import Connection
from sandpool.kube.credentials import RequestAuth
from sandpool.kube.http import HttpTransport
from sandpool.kube.http_stream import open_stream
from sandpool.kube.tls import client_tls
from sandpool.kube.transport import Request
from sandpool.server.serving.pki import Authority

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, SystemClock())


@pytest.fixture
def tls(authority: Authority) -> ssl.SSLContext:
    """TLS of a client with a certificate."""
    context = client_tls(cadata=authority.ca_pem)
    context.load_cert_chain(authority.admin().certificate, authority.admin().key)
    return context


class Server:
    """Answers every request and closes the connection. Notes of each whether it was resumed, and its user."""

    def __init__(self) -> None:
        self.seen: list[tuple[bool, str]] = []
        self.url = ""

    @asynccontextmanager
    async def serving(self, tls: ssl.SSLContext) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        self.url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield
        finally:
            server.close()
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        connection = writer.get_extra_info("ssl_object")
        names = dict(part[0] for part in connection.getpeercert()["subject"])
        self.seen.append((connection.session_reused, names["commonName"]))
        writer.write(ANSWER)
        await writer.drain()
        writer.close()


async def ask(server: Server, tls: ssl.SSLContext) -> None:
    response = await open_stream(Connection(server.url, tls), RequestAuth(), "GET", "/", {})
    assert b"".join([piece async for piece in response.body()]) == b"{}"


async def test_new_connection_resumes_the_session_of_the_last_one(authority: Authority, tls: ssl.SSLContext) -> None:
    server = Server()
    async with asyncio.timeout(60), server.serving(authority.tls()):
        for _ in range(3):
            await ask(server, tls)
        transport = HttpTransport(Connection(server.url, tls))
        await transport.request(Request("GET", "/"))
        await transport.close()
        await asyncio.gather(*(ask(server, tls) for _ in range(5)))
    (first, user), *others = server.seen
    assert not first
    assert others == [(True, user)] * 8, "a resumed session has the client certificate of the first one"


def test_connection_is_made_at_every_point_of_the_handshake_of_another(
    authority: Authority, tls: ssl.SSLContext
) -> None:
    """The session of a connection cannot be read at some points of its handshake."""
    to_client, from_client, to_server, from_server = (ssl.MemoryBIO() for _ in range(4))
    server = authority.tls().wrap_bio(to_server, from_server, server_side=True)
    client = tls.wrap_bio(to_client, from_client, server_hostname="127.0.0.1")
    connections = 0
    while client.version() is None:
        with suppress(ssl.SSLWantReadError):
            client.do_handshake()
        to_server.write(from_client.read())
        with suppress(ssl.SSLWantReadError):
            server.do_handshake()
        while piece := from_server.read(64):
            to_client.write(piece)
            with suppress(ssl.SSLWantReadError):
                client.do_handshake()
            tls.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="127.0.0.1")
            tls._latest["127.0.0.1"] = client  # type: ignore[attr-defined]
            connections += 1
    assert connections > 5


async def test_server_that_does_not_know_the_session_is_asked_anew(authority: Authority, tls: ssl.SSLContext) -> None:
    server = Server()
    for _ in range(2):
        async with asyncio.timeout(60), server.serving(authority.tls()):  # with keys of its own for tickets
            await ask(server, tls)
            await ask(server, tls)
    assert [resumed for resumed, _ in server.seen] == [False, True, False, True]


async def test_server_without_tickets_is_asked_anew(authority: Authority, tls: ssl.SSLContext) -> None:
    server, without = Server(), authority.tls()
    without.num_tickets = 0
    async with asyncio.timeout(60), server.serving(without):
        await ask(server, tls)
        await ask(server, tls)
    assert [resumed for resumed, _ in server.seen] == [False, False]


async def test_unknown_authority_is_refused_also_after_a_session(authority: Authority, tmp_path: Path) -> None:
    server, other = Server(), Authority(tmp_path / "other", SystemClock())
    async with asyncio.timeout(60), server.serving(authority.tls()):
        distrusting = client_tls(cadata=other.ca_pem)
        for _ in range(2):
            with pytest.raises(ssl.SSLCertVerificationError):
                await ask(server, distrusting)
    assert server.seen == []


def test_client_checks_what_the_default_context_checks(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSLKEYLOGFILE", raising=False)
    ours, default = client_tls(cadata=authority.ca_pem), ssl.create_default_context(cadata=authority.ca_pem)
    for name in ("verify_mode", "check_hostname", "verify_flags", "options", "minimum_version", "keylog_filename"):
        assert getattr(ours, name) == getattr(default, name), name
    assert client_tls().cert_store_stats() == ssl.create_default_context().cert_store_stats()
