"""Routers on a loopback address accept no request that a web page of another site has caused."""

from __future__ import annotations

import pytest

from sandpool.router.destination import RequestRejected
from sandpool.router.loopback import check_loopback_request

NAMES = frozenset({"sandbox.example.com", "*.apps.example.com"})


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "localhost:8080", "LOCALHOST", "127.0.0.1:40123", "127.0.0.77", "[::1]:80", "x.localhost"),
        *("sandbox.example.com:80", "a.apps.example.com"),
    ],
)
def test_loopback_names_and_allowed_names_are_accepted(host: str) -> None:
    check_loopback_request({"host": host}, NAMES)
    check_loopback_request({"origin": f"http://{host}"}, NAMES)
    check_loopback_request({"host": host, "origin": f"https://{host}"}, NAMES)


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1", "8.8.8.8:80", ""),
        *("evil@localhost.x",),
        *("apps.example.com", "x.sandbox.example.com", "[::2]", "[", "127.0.0.1\\.evil.example", "0x7f000001"),
    ],
)  # fmt: skip
def test_other_names_are_rejected(host: str) -> None:
    for headers in ({"host": host}, {"origin": f"http://{host}"}, {"host": "localhost", "origin": f"http://{host}"}):
        with pytest.raises(RequestRejected) as rejection:
            check_loopback_request(headers, NAMES)
        assert rejection.value.status == 403


@pytest.mark.parametrize("origin", ["null", "", "file://", "chrome-extension://abc"])
def test_opaque_origins_are_rejected(origin: str) -> None:
    with pytest.raises(RequestRejected):
        check_loopback_request({"host": "localhost", "origin": origin}, NAMES)


def test_clients_without_host_and_origin_are_no_browsers() -> None:
    check_loopback_request({}, NAMES)
