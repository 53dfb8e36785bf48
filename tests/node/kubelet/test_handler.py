"""Routes of the node's own API, and responses to anything else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandpool.server.streams.remote_command import SPDY_PROTOCOLS
from sandpool.testing.waiting import until
from tests.support.fake_kubelet import PATIENCE, showing

if TYPE_CHECKING:
    from tests.node.kubelet.conftest import Rig

UPGRADE = f"Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: {','.join(SPDY_PROTOCOLS)}\r\n"


async def answer(rig: Rig, method: str, target: str, headers: str = "") -> tuple[int, str]:
    request = f"{method} {target} HTTP/1.1\r\nHost: a\r\n{headers}\r\n".encode()
    head, _, body = (await rig.kubelet.ask(rig.kubelet.authority.admin(), request)).partition(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1]), body.decode()


@pytest.mark.parametrize(
    ("method", "target", "code", "words"),
    [
        ("POST", "/exec/default/none/main?command=a&output=1", 404, 'pod \\"none\\" does not run on this node'),
        ("POST", "/exec/other/box/main?command=a&output=1", 404, "does not run on this node"),
        ("POST", "/exec/default/box/none?command=a&output=1", 400, "container none is not valid for pod box"),
        ("POST", "/exec/default/box/main?output=1", 400, "at least one command"),
        ("POST", "/exec/default/box/main?command=a", 400, "at least 1 of stdin, stdout, stderr"),
        ("POST", "/exec/default/box/main?command=a&stdout=true", 400, "at least 1 of stdin, stdout, stderr"),
        ("PUT", "/exec/default/box/main?command=a&output=1", 405, "only GET and POST"),
        ("POST", "/exec/default/box", 404, "page not found"),
        ("POST", "/run/default/box/main?cmd=a", 404, "page not found"),
        ("GET", "/pods", 404, "page not found"),
        ("GET", "/", 404, "page not found"),
        ("POST", "/containerLogs/default/box/main", 405, "POST is not understood"),
        ("GET", "/containerLogs/default/box", 404, "page not found"),
        ("GET", "/containerLogs/default/none/main", 404, "does not run on this node"),
        ("GET", "/containerLogs/default/box/none", 400, "container none is not valid"),
        ("GET", "/containerLogs/default/box/main?tailLines=many", 400, 'tailLines: "many" is not a number'),
        ("GET", "/containerLogs/default/box/main?sinceTime=soon", 400, 'sinceTime: "soon" is not a time'),
        ("GET", "/healthz", 200, "ok"),
    ],
)
async def test_requests_get_their_status(rig: Rig, method: str, target: str, code: int, words: str) -> None:
    found, body = await answer(rig, method, target, "" if method == "GET" else UPGRADE)
    assert (found, words in body) == (code, True), body


@pytest.mark.parametrize(
    "headers",
    [
        "",
        "Upgrade: websocket\r\nConnection: Upgrade\r\n",
        "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\n",
        "Upgrade: SPDY/3.1\r\nConnection: Upgrade\r\n",
        "Upgrade: SPDY/3.1\r\nConnection: Upgrade\r\nX-Stream-Protocol-Version: v1.other\r\n",
    ],
)
async def test_unsupported_stream_protocol_is_rejected(rig: Rig, headers: str) -> None:
    code, body = await answer(rig, "POST", "/exec/default/box/main?command=a&output=1", headers)
    assert (code, "unable to" in body) == (400, True), body


async def test_log_errors_are_text_and_others_are_statuses(rig: Rig) -> None:
    """kube-apiserver wraps the text in a Status; kubectl reads the other objects itself."""
    assert not (await answer(rig, "GET", "/containerLogs/default/none/main"))[1].startswith("{")
    jane = rig.kubelet.authority.client("jane", "jane")
    refused = await rig.kubelet.ask(jane, b"GET /containerLogs/default/box/main HTTP/1.1\r\nHost: a\r\n\r\n")
    assert refused.endswith(b"\r\n\r\nForbidden (user=jane, verb=get, resource=nodes, subresource=proxy)")
    assert '"kind":"Status"' in (await answer(rig, "POST", "/exec/default/none/main?command=a&output=1", UPGRADE))[1]


async def test_log_options_are_honoured(rig: Rig) -> None:
    target = "/containerLogs/default/box/side?follow=true&previous=true&timestamps=true&tailLines=5&limitBytes=9"
    reader, writer = await _connected(rig)
    writer.write(
        f"GET {target}&sinceTime=2026-01-01T00:00:00Z HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode()
    )
    async with asyncio.timeout(PATIENCE):
        assert b"one\n" in await reader.read()
    writer.close()
    query = rig.kubelet.pod_access.queries[-1]
    assert (query.container, query.follow, query.previous, query.timestamps) == ("side", True, True, True)
    assert (query.tail, query.limit, query.since) == (5, 9, 1767225600.0)


async def _connected(rig: Rig) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    identity = rig.kubelet.authority.admin()
    return await asyncio.open_connection("127.0.0.1", rig.kubelet.endpoint.port, ssl=showing(identity))


@pytest.fixture
async def quiet(rig: Rig) -> AsyncIterator[Rig]:
    """Assert at the end that no request is in progress and that the server still answers."""
    yield rig
    assert (await answer(rig, "GET", "/healthz"))[1] == "ok"

    async def idle() -> bool:
        return rig.kubelet.pod_access.running == 0

    await until(idle)


PARTS = st.sampled_from(
    [
        *("exec", "attach", "portForward", "containerLogs", "default", "box", "main", "..", ".", "", "%2f", "%00", "%"),
        *("healthz", "é", "a" * 300, "?", "?command=a&output=1", "&input=1&tty=1", "?follow=true&tailLines=-1"),
    ]
)
WHOLE_BODY = b"0\r\n\r\n"  # of five bytes, or in chunks: nothing more is waited for
HEADERS = st.lists(
    st.sampled_from(
        [
            UPGRADE,
            "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\n",
            "Sec-WebSocket-Key: \xff\r\n",
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n",
            "Content-Length: 5\r\n",
            "Transfer-Encoding: chunked\r\n",
            "Impersonate-User: root\r\n",
            "Expect: nothing\r\n",
            "X: " + "y" * 70_000 + "\r\n",
        ]
    ),
    max_size=4,
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(
    method=st.sampled_from(["GET", "POST", "HEAD", "DELETE", "CONNECT", "\x16\x03"]),
    parts=st.lists(PARTS, max_size=6),
    headers=HEADERS,
    rest=st.binary(max_size=200),
)
async def test_arbitrary_requests_are_rejected_cleanly(
    quiet: Rig, method: str, parts: list[str], headers: list[str], rest: bytes
) -> None:
    target = "/" + "/".join(parts)
    request = f"{method} {target} HTTP/1.1\r\nHost: a\r\n{''.join(headers)}\r\n".encode("latin-1", "replace")
    reader, writer = await _connected(quiet)
    writer.write(request + WHOLE_BODY + rest)
    async with asyncio.timeout(PATIENCE):
        first = await reader.read(12)
    assert first[:9] in (b"HTTP/1.1 ", b"") and not first.endswith(b" 500"), first
    writer.close()
