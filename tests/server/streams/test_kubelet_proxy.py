"""The API server as a client of kubelets: endpoints, certificates and responses."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandpool.api.kinds import POD
from sandpool.api.labels import KUBELET_CERTIFICATE
from sandpool.api.resource import Object
from sandpool.engine.clock import SystemClock
from sandpool.kube.errors import ApiError, BadRequest, NotFound, ServiceUnavailable
from sandpool.kube.http_stream import StreamedResponse
from sandpool.server.request.messages import Response, ServerRequest, User
from sandpool.server.serving.pki import Authority, server_tls
from sandpool.server.streams.kubelet_proxy import KubeletEndpoint, KubeletProxy
from sandpool.server.streams.pods import PodStreams
from sandpool.testing.objects import new
from tests.support.garbage import freed_at_once

INTERNAL = {"type": "InternalIP", "address": "10.0.0.1"}
OTHERS = [{"type": "Hostname", "address": "here"}, {"type": "ExternalIP", "address": "10.0.0.2"}]


@pytest.mark.parametrize(
    ("addresses", "port", "found"),
    [
        ([*OTHERS, INTERNAL], 10250, ("10.0.0.1", 10250)),
        (OTHERS, 10250, ("10.0.0.2", 10250)),
        (OTHERS[:1], 1, ("here", 1)),
        ([INTERNAL, {"type": "InternalIP", "address": "fd00::1"}], 1, ("10.0.0.1", 1)),
        ([INTERNAL], 0, None),
        ([INTERNAL], None, None),
        ([], 10250, None),
        ([{"type": "InternalIP"}, *OTHERS], 1, ("10.0.0.2", 1)),
        ([{}], 1, None),
    ],
)
def test_kubelet_endpoint_is_read_from_the_node(
    addresses: list[Object], port: int | None, found: tuple[str, int] | None
) -> None:
    status: Object = {"addresses": addresses}
    if port is not None:
        status["daemonEndpoints"] = {"kubeletEndpoint": {"Port": port}}
    endpoint = KubeletEndpoint.of({"metadata": {"name": "node"}, "status": status})
    assert (None if endpoint is None else (endpoint.host, endpoint.port)) == found


def test_node_without_status_has_no_endpoint() -> None:
    assert KubeletEndpoint.of({"metadata": {"name": "node"}}) is None


class Told:
    """A kubelet that sends a fixed response to any request."""

    def __init__(self, authority: Authority) -> None:
        self.authority = authority
        self.says = b""
        self.asked = b""
        self.fingerprint = ""
        self.node: Object | None = {}

    async def start(self) -> None:
        tls = server_tls(self.authority.kubelet("node", []), self.authority.ca_pem)
        tls.verify_mode = ssl.CERT_REQUIRED
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        self.port: int = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.asked = await reader.readuntil(b"\r\n\r\n")
            writer.write(self.says)
            await writer.drain()
        except (EOFError, OSError):
            pass
        writer.close()

    def find(self, name: str) -> Object | None:
        if self.node is None:
            return None
        port = {"kubeletEndpoint": {"Port": self.port}}
        status = {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}], "daemonEndpoints": port}
        return {"metadata": {"name": name, "annotations": {KUBELET_CERTIFICATE: self.fingerprint}}, "status": status}

    async def answer(self, subresource: str, query: str = "", method: str = "GET", **headers: str) -> Response:
        request = ServerRequest(method, "", User("jane"), raw_query=query, headers=headers)
        kubelets = KubeletProxy(self.find, self.authority.kubelet_client)
        pod = new(POD, "box", spec={"nodeName": "node", "containers": [{"name": "main", "image": "a"}]})
        pod = {**pod, "metadata": {**pod["metadata"], "namespace": "space"}}
        return await PodStreams(SystemClock(), None, kubelets).answer(request, subresource, pod)


@pytest.fixture
async def told(tmp_path: Path) -> AsyncIterator[Told]:
    kubelet = Told(Authority(tmp_path, SystemClock()))
    await kubelet.start()
    yield kubelet
    await kubelet.stop()


def plain(status: str, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


async def text_of(response: Response) -> bytes:
    assert response.stream is not None
    return b"".join([line.line() for batch in [each async for each in response.stream] for line in batch])


async def test_log_request_is_forwarded(told: Told) -> None:
    told.says = plain("200 OK", b"one\ntwo\n")
    query = "tailLines=5&follow=true&other=1&container=main&sinceTime=2026-01-01T00%3A00%3A00%2B01%3A00"
    response = await told.answer("log", query, authorization="Bearer secret", cookie="a")
    assert (response.content_type, await text_of(response)) == ("text/plain", b"one\ntwo\n")
    line, *headers = told.asked.decode().split("\r\n")
    assert line == (
        "GET /containerLogs/space/box/main?follow=true&sinceTime=2026-01-01T00%3A00%3A00%2B01%3A00&tailLines=5 HTTP/1.1"
    )
    assert not [each for each in headers if "secret" in each or each.startswith("cookie")], "what is between us stays"


@pytest.mark.parametrize(
    ("says", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n", b"onetwo"),
        (b"HTTP/1.1 200 OK\r\n\r\nuntil it ends", b"until it ends"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\ncut off", b"cut off"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\nwhat?", b"one"),
    ],
)
async def test_response_framings_are_understood(told: Told, says: bytes, body: bytes) -> None:
    told.says = says
    assert await text_of(await told.answer("log")) == body


async def test_unread_log_is_closed(told: Told) -> None:
    told.says = plain("200 OK", b"x" * 1_000_000)
    response = await told.answer("log")
    assert response.stream is not None
    await response.stream.aclose()


@pytest.mark.parametrize(
    ("subresource", "query", "target"),
    [
        (
            "exec",
            "command=a&command=b+c%26&stdin=true&stdout=true&tty=true",
            "/exec/space/box/main?input=1&output=1&tty=1&command=a&command=b+c%26",
        ),
        ("exec", "command=a&stdout=1&stderr=1&stdin=false", "/exec/space/box/main?output=1&error=1&command=a"),
        ("attach", "container=main&stdout=true", "/attach/space/box/main?output=1"),
        ("portforward", "ports=80", "/portForward/space/box?"),
    ],
)
async def test_upgrade_request_is_forwarded(told: Told, subresource: str, query: str, target: str) -> None:
    told.says = (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: SPDY/3.1\r\nConnection: Upgrade\r\nX-Other: a\r\n\r\nrest"
    )
    sent = {"upgrade": "SPDY/3.1", "connection": "Upgrade", "x-stream-protocol-version": "v4", "x-secret": "s"}
    response = await told.answer(subresource, query, "POST", **sent)
    assert told.asked.startswith(f"POST {target} HTTP/1.1\r\n".encode())
    assert b"x-stream-protocol-version: v4\r\n" in told.asked
    assert b"secret" not in told.asked
    assert response.headers == [("upgrade", "SPDY/3.1"), ("connection", "Upgrade")]
    client = Client(b"to the kubelet")
    assert response.upgrade is not None
    await response.upgrade.run(client)
    assert client.heard == b"rest"


async def test_finished_request_is_freed_without_the_garbage_collector(told: Told) -> None:
    async def read() -> None:
        told.says = plain("200 OK", b"one")
        await text_of(await told.answer("log"))

    async def be_refused() -> None:
        told.says = plain("404 Not Found", b"no")
        with pytest.raises(NotFound):
            await told.answer("log")

    async def get_nonsense() -> None:
        told.says = b"nonsense"
        with pytest.raises(ServiceUnavailable):
            await told.answer("log")

    async def talk() -> None:
        told.says = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: SPDY/3.1\r\nConnection: Upgrade\r\n\r\n"
        response = await told.answer("attach", "stdout=true", upgrade="SPDY/3.1", connection="Upgrade")
        assert response.upgrade is not None
        await response.upgrade.run(Client(b"a"))

    for use in (read, be_refused, get_nonsense, talk):
        await freed_at_once(use, StreamedResponse)


class Client:
    """Says one thing, and stays to listen."""

    def __init__(self, says: bytes) -> None:
        self.says = says
        self.heard = b""

    async def receive(self) -> bytes:
        if self.says:
            said, self.says = self.says, b""
            return said
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async def send(self, data: bytes) -> None:
        self.heard += data

    async def close(self) -> None: ...


STATUS = b'{"kind":"Status","status":"Failure","reason":"NotFound","message":"no such pod","code":404}'


@pytest.mark.parametrize(
    ("says", "error", "words"),
    [
        (plain("404 Not Found", STATUS), NotFound, "no such pod"),
        (plain("400 Bad Request", b"it is waiting to start\n"), BadRequest, "it is waiting to start"),
        (plain("500 Oh", b""), ApiError, "the server answered 500"),
        (plain("200 OK", b"no conversation"), ServiceUnavailable, "unexpected response: 200"),
        (plain("301 Moved", b"", "Location: https://elsewhere/"), ServiceUnavailable, "unexpected response: 301"),
        (plain("403 Forbidden", b"Forbidden (user=us)"), ServiceUnavailable, "the node refused: Forbidden (user=us)"),
        (plain("401 Unauthorized", b"who?"), ServiceUnavailable, "the node refused: who?"),
        (b"", ServiceUnavailable, "closed before a response"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", ServiceUnavailable, "the response is not HTTP"),
        (b"HTTP/1.1 101 A\r\nX: " + b"y" * 200_000, ServiceUnavailable, "the node is unreachable at 127.0.0.1"),
    ],
)
async def test_kubelet_error_is_returned_as_its_type(
    told: Told, says: bytes, error: type[ApiError], words: str
) -> None:
    told.says = says
    with pytest.raises(error) as raised:
        await told.answer("exec", "command=a&stdout=true", "POST", upgrade="SPDY/3.1", connection="Upgrade")
    assert words in raised.value.message
    assert raised.value.code >= 400


async def test_kubelet_certificate_with_another_fingerprint_is_rejected(told: Told) -> None:
    told.says, told.fingerprint = plain("200 OK", b"lies"), "00" * 32
    with pytest.raises(ServiceUnavailable, match="does not match the fingerprint in the Node"):
        await told.answer("log")
    assert told.asked == b"", "it is told nothing"


async def test_unreachable_kubelet_is_reported(told: Told) -> None:
    await told.stop()
    with pytest.raises(ServiceUnavailable, match='pod "box" cannot be reached: the node is unreachable at 127'):
        await told.answer("log")
    told.node = None
    with pytest.raises(ServiceUnavailable, match="no node of this server runs it"):
        await told.answer("log")


@pytest.mark.parametrize(
    ("subresource", "query"),
    [("exec", "stdout=1"), ("exec", "command=a"), ("exec", "command=a&stdout=1&container=b"), ("log", "container=b")],
)
async def test_invalid_options_are_not_forwarded(told: Told, subresource: str, query: str) -> None:
    with pytest.raises(BadRequest):
        await told.answer(subresource, query, "POST")
    assert told.asked == b""
