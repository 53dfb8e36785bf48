"""Proxies exec, attach, port-forward and logs to the kubelet of another process, like kube-apiserver.

A client's request becomes a request to the kubelet, and after the protocol switch bytes are copied unchanged in both
directions. So only the node that runs the pod interprets the streams, and back-pressure works end to end. The price is
that the kubelet must support the protocols of the clients.

The server presents a certificate of its own CA. The kubelet's certificate must match the fingerprint in the Node
object, which only the node and administrators can write. Without a fingerprint any certificate is accepted, as
kube-apiserver does by default.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, urlencode

import orjson

from sandpool.api.labels import KUBELET_CERTIFICATE
from sandpool.api.resource import Object
from sandpool.kube.byte_stream import ByteStream
from sandpool.kube.errors import ApiError, ServiceUnavailable, from_status
from sandpool.kube.http_stream import StreamedResponse, request_head, send_request
from sandpool.server.request.messages import Response, Upgrade
from sandpool.server.serving.pki import Identity
from sandpool.server.streams.responses import text_response

# Seconds to connect and to receive the head of a response; the kubelet authorizes the request at the API first.
_TIMEOUT: Final = 15.0
_LONGEST_ERROR: Final = 1 << 16
# Only the headers that negotiate a protocol are forwarded.
_REQUEST_HEADERS: Final = (
    "upgrade",
    "connection",
    "x-stream-protocol-version",
    "sec-websocket-key",
    "sec-websocket-protocol",
    "sec-websocket-version",
)
_RESPONSE_HEADERS: Final = (
    "upgrade",
    "connection",
    "x-stream-protocol-version",
    "sec-websocket-accept",
    "sec-websocket-protocol",
)
_ADDRESSES: Final = ("InternalIP", "ExternalIP", "InternalDNS", "Hostname")


@dataclass(frozen=True, slots=True)
class KubeletEndpoint:
    """The address of a kubelet and the fingerprint of its certificate, if known."""

    host: str
    port: int
    fingerprint: str

    @classmethod
    def of(cls, node: Object) -> KubeletEndpoint | None:
        """The endpoint in a Node's status; None if it is not set."""
        status = node.get("status") or {}
        port = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port") or 0
        addresses = {each.get("type"): each.get("address") for each in reversed(status.get("addresses") or [])}
        host = next((found for type in _ADDRESSES if (found := addresses.get(type))), "")
        annotations = node["metadata"].get("annotations") or {}
        return cls(host, port, annotations.get(KUBELET_CERTIFICATE, "")) if host and port else None

    def verify(self, certificate: bytes) -> None:
        if self.fingerprint and hashlib.sha256(certificate).hexdigest() != self.fingerprint:
            raise ConnectionError("its certificate does not match the fingerprint in the Node")


@dataclass(frozen=True, slots=True)
class KubeletRequest:
    """A request to a kubelet. ``headers`` are those of the client."""

    path: tuple[str, ...]
    query: Sequence[tuple[str, str]] = ()
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def target(self) -> str:
        return "".join(f"/{quote(part, safe='')}" for part in self.path) + f"?{urlencode(self.query)}"

    @property
    def forwarded_headers(self) -> dict[str, str]:
        """The headers to forward."""
        return {name: self.headers[name] for name in _REQUEST_HEADERS if name in self.headers}


class KubeletProxy:
    """``find`` returns a Node by name, ``identity`` the client certificate."""

    def __init__(self, find: Callable[[str], Object | None], identity: Callable[[], Identity]) -> None:
        self.find = find
        self.identity = identity

    def endpoint(self, pod: Object) -> KubeletEndpoint | None:
        """The endpoint of the kubelet that runs a pod; None if it is unknown."""
        node = self.find(pod["spec"].get("nodeName") or "")
        return None if node is None else KubeletEndpoint.of(node)

    async def upgrade(self, endpoint: KubeletEndpoint, request_: KubeletRequest) -> Response:
        """Switch protocols with the kubelet and connect the client to it."""
        response = await self._send(endpoint, request_)
        if response.status != 101:
            raise await _error_of(response)
        agreed: list[tuple[str, str]] = [
            (name, response.headers[name]) for name in _RESPONSE_HEADERS if name in response.headers
        ]
        return Response(101, headers=agreed, upgrade=Upgrade(lambda wire: _relay(wire, response), response.close))

    async def read(self, endpoint: KubeletEndpoint, request_: KubeletRequest) -> Response:
        """Stream a text response."""
        response = await self._send(endpoint, request_)
        if response.status != 200:
            raise await _error_of(response)
        return text_response(response.body(), response.close)

    async def _send(self, endpoint: KubeletEndpoint, request_: KubeletRequest) -> StreamedResponse:
        where = f"[{endpoint.host}]:{endpoint.port}" if ":" in endpoint.host else f"{endpoint.host}:{endpoint.port}"
        try:
            async with asyncio.timeout(_TIMEOUT):
                request = request_head(request_.method, request_.target, where, request_.forwarded_headers)
                return await send_request(endpoint.host, endpoint.port, self._tls(), endpoint.verify, request)
        except OSError as error:  # TimeoutError, too, which has no message
            why = str(error) or "timed out"
            raise ServiceUnavailable(f"the node is unreachable at {where}: {why}") from error

    def _tls(self) -> ssl.SSLContext:
        """Create a context for every connection, because certificates are renewed."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # the fingerprint is verified instead
        identity = self.identity()
        context.load_cert_chain(identity.certificate, identity.key)
        return context


async def _relay(client: ByteStream, response: StreamedResponse) -> None:
    """Copy bytes until one side ends."""
    kubelet = response.byte_stream()

    async def pass_on(source: ByteStream, target: ByteStream) -> None:
        while data := await source.receive():
            await target.send(data)

    ways = [asyncio.create_task(pass_on(client, kubelet)), asyncio.create_task(pass_on(kubelet, client))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        response.close()
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


async def _error_of(response: StreamedResponse) -> ApiError:
    """The error of a kubelet's response, from a Status or plain text."""
    text = b""
    body = response.body()
    try:
        async with asyncio.timeout(_TIMEOUT):
            async for piece in body:
                text += piece
                if len(text) > _LONGEST_ERROR:
                    break
    except TimeoutError:
        pass
    finally:
        await body.aclose()
    try:
        status = orjson.loads(text)
    except orjson.JSONDecodeError:
        status = {"kind": "Status", "message": text.decode(errors="replace").strip()}
    if response.status < 400:
        return ServiceUnavailable(f"the node sent an unexpected response: {response.status}")
    error = from_status(status, response.status)
    # The client is authorized; a 401 or 403 concerns the server's own credentials.
    return ServiceUnavailable(f"the node refused: {error.message}") if response.status in (401, 403) else error
