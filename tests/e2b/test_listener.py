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
from sandpool.e2b.listener import listening, tls_context


async def test_connections_beyond_the_limit_are_turned_away(endpoint: Endpoint) -> None:
    endpoint.options = replace(endpoint.options, max_connections=2)
    async with listening(endpoint, "127.0.0.1", 0) as (host, port), AsyncExitStack() as stack:
        for _ in range(2):
            reader, writer = await asyncio.open_connection(host, port)
            stack.callback(writer.close)
            writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        reader, writer = await asyncio.open_connection(host, port)
        stack.callback(writer.close)
        assert (await reader.read()).startswith(b"HTTP/1.1 503")


async def test_long_heads_are_refused(endpoint: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    async with listening(endpoint, "127.0.0.1", 0) as (host, port):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 100_000 + b"\r\n\r\n")
        assert (await reader.readline()).split()[1] == b"400"
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
