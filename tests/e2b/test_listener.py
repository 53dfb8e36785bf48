from __future__ import annotations

import asyncio
import ssl
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sandpool.e2b.endpoint import Endpoint
from sandpool.e2b.keys import ApiKeys
from sandpool.e2b.listener import listening, tls_context


async def answer_to(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> int:
    """Send a request and return the status of the answer."""
    writer.write(b"GET " + head + b"\r\n\r\n")
    answer = await reader.readuntil(b"\r\n\r\n")
    (length,) = [line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    await reader.readexactly(int(length.partition(b":")[2]))
    return int(answer.split()[1])


async def test_connections_beyond_the_limit_are_turned_away(endpoint: Endpoint, keys: ApiKeys) -> None:
    """Those of clients with a key stay; a connection without one ends with its answer."""
    endpoint.options = replace(endpoint.options, max_connections=2)
    key, _ = await keys.create("default")
    listing = b"/sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: " + key.encode()
    async with listening(endpoint, "127.0.0.1", 0) as (host, port), AsyncExitStack() as stack:
        known = [await asyncio.open_connection(host, port) for _ in range(2)]
        for reader, writer in known:
            stack.callback(writer.close)
            assert await answer_to(reader, writer, listing) == 200
        reader, writer = await asyncio.open_connection(host, port)
        stack.callback(writer.close)
        assert (await reader.read()).startswith(b"HTTP/1.1 503")
        for reader, writer in known:
            assert await answer_to(reader, writer, listing) == 200


@pytest.mark.parametrize(
    "head",
    [b"/health HTTP/1.1\r\nHost: x", b"/sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: e2b_guess"],
    ids=["no key", "wrong key"],
)
async def test_a_client_without_a_key_gets_one_answer(endpoint: Endpoint, head: bytes) -> None:
    async with listening(endpoint, "127.0.0.1", 0) as (host, port):
        reader, writer = await asyncio.open_connection(host, port)
        await answer_to(reader, writer, head)
        assert await reader.read() == b""
        writer.close()


async def test_long_heads_are_refused(endpoint: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    async with listening(endpoint, "127.0.0.1", 0) as (host, port):
        for heads, status in (((b"x" * 10_000,), b"400"), ((b"x" * 8000,) * 10, b"431")):
            reader, writer = await asyncio.open_connection(host, port)
            fields = b"".join(b"X: %s\r\n" % value for value in heads)
            writer.write((b"GET /health HTTP/1.1\r\nHost: x\r\n" + fields)[: (64 << 10) + 1])
            assert (await reader.readline()).split()[1] == status
            writer.close()
    assert not caplog.records, "clients must not fill the log"


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for localhost that signs itself, and its key."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    files = tmp_path / "tls.crt", tmp_path / "tls.key"
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files


async def test_tls_is_served(endpoint: Endpoint, certificate: tuple[Path, Path]) -> None:
    trusting = ssl.create_default_context(cafile=certificate[0])
    async with (
        listening(endpoint, "127.0.0.1", 0, tls_context(*certificate)) as (_, port),
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusting)) as session,
        session.get(f"https://127.0.0.1:{port}/health", server_hostname="localhost") as answer,
    ):
        assert answer.status == 200
