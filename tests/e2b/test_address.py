from __future__ import annotations

import pytest

from sandpool.e2b.address import Address, address_of
from sandpool.e2b.errors import Refusal


@pytest.mark.parametrize(
    ("host", "headers", "wanted"),
    [
        ("8080-iabc.localhost:6495", {}, Address("iabc", 8080)),
        ("49983-IABC.e2b.example.com", {}, Address("iabc", 49983)),
        ("127.0.0.1:6495", {"E2b-Sandbox-Id": "iabc"}, Address("iabc", 49983)),
        ("127.0.0.1:6495", {"E2b-Sandbox-Id": "iabc", "E2b-Sandbox-Port": "49999"}, Address("iabc", 49999)),
        # The name of the host is what a browser and a certificate check.
        ("80-iabc.localhost", {"E2b-Sandbox-Id": "other"}, Address("iabc", 80)),
        ("api.e2b.example.com", {}, None),
        ("localhost:6495", {}, None),
        ("10-20.30.40", {}, Address("20", 10)),
    ],
)
def test_host_or_headers_name_the_sandbox(host: str, headers: dict[str, str], wanted: Address | None) -> None:
    assert address_of(host, headers) == wanted


@pytest.mark.parametrize(
    ("host", "headers"),
    [
        ("99999-iabc.localhost", {}),
        ("0-iabc.localhost", {}),
        ("localhost", {"E2b-Sandbox-Id": "a/b"}),
        ("localhost", {"E2b-Sandbox-Id": "x" * 64}),
        ("localhost", {"E2b-Sandbox-Id": "iabc", "E2b-Sandbox-Port": "٨٠"}),
    ],
)
def test_what_names_no_sandbox_is_refused(host: str, headers: dict[str, str]) -> None:
    with pytest.raises(Refusal):
        address_of(host, headers)


def test_endpoint_plays_daemon_and_interpreter() -> None:
    assert [Address("i", port).is_played for port in (49983, 49999, 8080)] == [True, True, False]
