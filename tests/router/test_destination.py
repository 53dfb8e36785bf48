from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.router.destination import Destination, RequestRejected, parse_destination

ID = {"x-sandbox-id": "box"}
NO_LABELS = ("A", "a.b", "../x", "a" * 64)
NO_PORTS = ("0", "65536", "-1", "80a", "", "٣", "1e3")
NO_ADDRESSES = ("a", "10.0.0", "10.0.0.1:80", "::g")
HEADERS = ("x-sandbox-id", "x-sandbox-namespace", "x-sandbox-port", "x-sandbox-pod-ip")


@pytest.mark.parametrize(
    ("headers", "wanted"),
    [
        (ID, Destination("default", "box", 8888, 180.0)),
        ({**ID, "x-sandbox-namespace": "team-1"}, Destination("team-1", "box", 8888, 180.0)),
        ({**ID, "x-sandbox-namespace": ""}, Destination("default", "box", 8888, 180.0)),
        ({**ID, "x-sandbox-port": "65535"}, Destination("default", "box", 65535, 180.0)),
        ({**ID, "x-sandbox-pod-ip": "10.0.0.7"}, Destination("default", "box", 8888, 180.0, "10.0.0.7")),
        ({**ID, "x-sandbox-pod-ip": "fd00::7"}, Destination("default", "box", 8888, 180.0, "fd00::7")),
        ({**ID, "x-sandbox-uid": "1-2-3"}, Destination("default", "box", 8888, 180.0, "", "1-2-3")),
        ({**ID, "x-sandbox-timeout": "2.5"}, Destination("default", "box", 8888, 2.5)),
        ({**ID, "x-sandbox-timeout": "9999"}, Destination("default", "box", 8888, 180.0)),
        ({**ID, "x-sandbox-timeout": "-1"}, Destination("default", "box", 8888, 180.0)),
        ({**ID, "x-sandbox-timeout": "nan"}, Destination("default", "box", 8888, 180.0)),
        ({**ID, "x-sandbox-timeout": "soon"}, Destination("default", "box", 8888, 180.0)),
        ({"x-sandbox-id": "a" * 63}, Destination("default", "a" * 63, 8888, 180.0)),
    ],
)
def test_headers_select_the_destination(headers: dict[str, str], wanted: Destination) -> None:
    assert parse_destination(headers) == wanted


@pytest.mark.parametrize(
    ("headers", "detail"),
    [
        ({}, "X-Sandbox-ID header is required."),
        ({"x-sandbox-id": ""}, "X-Sandbox-ID header is required."),
        *(
            ({"x-sandbox-id": name}, "Invalid sandbox ID format.")
            for name in ("A", "a.b", "-a", "a-", "a/b", "..", "a" * 64, "a\n", "ä", "a b", "box.default.svc")
        ),
        *(
            ({**ID, "x-sandbox-namespace": name}, "Invalid namespace format.")
            for name in ("A", "a.b", "../x", "a" * 64)
        ),
        *(
            ({**ID, "x-sandbox-port": port}, "Invalid port format.")
            for port in ("0", "65536", "-1", "80a", "", "٣", "1e3")
        ),
        *(
            ({**ID, "x-sandbox-pod-ip": ip}, "Invalid target IP address.")
            for ip in ("a", "10.0.0", "10.0.0.1:80", "::g")
        ),
    ],
)
def test_invalid_header_is_named_in_the_error(headers: dict[str, str], detail: str) -> None:
    with pytest.raises(RequestRejected) as refusal:
        parse_destination(headers)
    assert (refusal.value.status, refusal.value.detail) == (400, detail)


@given(
    st.dictionaries(
        st.sampled_from(["x-sandbox-id", "x-sandbox-namespace", "x-sandbox-port", "x-sandbox-pod-ip"]), st.text()
    )
)
def test_arbitrary_headers_give_a_valid_destination_or_an_error(headers: dict[str, str]) -> None:
    try:
        wanted = parse_destination(headers)
    except RequestRejected:
        return
    for name in (wanted.namespace, wanted.sandbox):
        assert name.isascii()
        assert not set(name) & set("./:@%?# \r\n")
    assert 1 <= wanted.port <= 65535
