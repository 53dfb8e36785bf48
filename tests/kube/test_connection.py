"""Invalid connections are rejected."""

from __future__ import annotations

import pytest

from sandpool.kube.connection import Connection, with_address
from sandpool.kube.credentials import Fixed


def test_credentials_are_not_sent_unencrypted() -> None:
    with pytest.raises(ValueError, match="unencrypted"):
        Connection("http://api.example.com", credentials=Fixed.token("t"))
    Connection("http://api.example.com")
    for host in ("127.0.0.1", "127.9.9.9", "[::1]", "localhost", "a.localhost"):
        Connection(f"http://{host}:80", credentials=Fixed.token("t"))


@pytest.mark.parametrize("server", ["", "api.example.com", "ftp://x", "https://", "unix:///x"])
def test_invalid_server_address_is_rejected(server: str) -> None:
    with pytest.raises(ValueError, match="not a server address"):
        Connection(server)


@pytest.mark.parametrize("url", ["https://127.0.0.1:6443", "https://[::1]:6443", "http://127.0.0.1/metrics"])
def test_address_in_a_url_stays(url: str) -> None:
    assert with_address(url) == url


def test_name_in_a_url_becomes_an_address() -> None:
    assert with_address("https://localhost:6443/x") in ("https://127.0.0.1:6443/x", "https://[::1]:6443/x")
