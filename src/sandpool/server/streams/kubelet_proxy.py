"""The way into pods of nodes that are other processes: the API that every kubelet has, as kube-apiserver uses it.

What a client asks for becomes a request to the kubelet, and what is said after both have agreed on a language is passed
on as it is, both ways. So there is one place where exec and port-forward are understood, which is where the pod runs;
this process neither takes streams apart nor puts them together, and whoever does not read slows down the one who
writes, all the way. The price is that a kubelet must speak what its clients speak, as ours does.

We show a certificate that our own CA has signed. The kubelet's is its own; its fingerprint is in the Node object, where
only the node and administrators write, and must be that one. A node that has put none there is believed, as
kube-apiserver believes every kubelet unless told otherwise.
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
from sandpool.kube.errors import ApiError, ServiceUnavailable, from_status
from sandpool.server.request.messages import Response, Upgrade
from sandpool.server.serving.pki import Identity
from sandpool.server.streams.byte_stream import ByteStream
from sandpool.server.streams.http_client import KubeletResponse, request_head, send_request
from sandpool.server.streams.responses import text_response

# Seconds for a connection, and for the head of an answer: a kubelet asks the API whether we may.
_PATIENCE: Final = 15.0
_LONGEST_REFUSAL: Final = 1 << 16
# Of what a client sends and a kubelet answers, only what makes them agree on a language is passed on.
_ASKING: Final = (
    "upgrade",
    "connection",
    "x-stream-protocol-version",
    "sec-websocket-key",
    "sec-websocket-protocol",
    "sec-websocket-version",
)
_AGREEING: Final = (
    "upgrade",
    "connection",
    "x-stream-protocol-version",
    "sec-websocket-accept",
    "sec-websocket-protocol",
)
_ADDRESSES: Final = ("InternalIP", "ExternalIP", "InternalDNS", "Hostname")


@dataclass(frozen=True, slots=True)
class KubeletEndpoint:
    """Where the kubelet of a node listens, and the fingerprint of its certificate if it is known."""

    host: str
    port: int
    fingerprint: str

    @classmethod
    def of(cls, node: Object) -> KubeletEndpoint | None:
        """None if the node has not said where."""
        status = node.get("status") or {}
        port = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port") or 0
        addresses = {each.get("type"): each.get("address") for each in reversed(status.get("addresses") or [])}
        host = next((found for type in _ADDRESSES if (found := addresses.get(type))), "")
        annotations = node["metadata"].get("annotations") or {}
        return cls(host, port, annotations.get(KUBELET_CERTIFICATE, "")) if host and port else None

    def believe(self, certificate: bytes) -> None:
        if self.fingerprint and hashlib.sha256(certificate).hexdigest() != self.fingerprint:
            raise ConnectionError("its certificate is not the one that the node has announced")


@dataclass(frozen=True, slots=True)
class KubeletRequest:
    """What a kubelet is asked. ``headers`` are those of the client who asks us."""

    path: tuple[str, ...]
    query: Sequence[tuple[str, str]] = ()
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def target(self) -> str:
        return "".join(f"/{quote(part, safe='')}" for part in self.path) + f"?{urlencode(self.query)}"

    @property
    def passed(self) -> dict[str, str]:
        """Of the headers, those that are the kubelet's business."""
        return {name: self.headers[name] for name in _ASKING if name in self.headers}


class KubeletProxy:
    """``find`` gives a Node by name, ``identity`` what we show."""

    def __init__(self, find: Callable[[str], Object | None], identity: Callable[[], Identity]) -> None:
        self.find = find
        self.identity = identity

    def endpoint(self, pod: Object) -> KubeletEndpoint | None:
        """Of the kubelet that runs a pod; None if there is none that can be asked."""
        node = self.find(pod["spec"].get("nodeName") or "")
        return None if node is None else KubeletEndpoint.of(node)

    async def converse(self, endpoint: KubeletEndpoint, question: KubeletRequest) -> Response:
        """Have the client and the kubelet talk."""
        answer = await self._ask(endpoint, question)
        if answer.status != 101:
            raise await _refusal(answer)
        agreed: list[tuple[str, str]] = [(name, answer.headers[name]) for name in _AGREEING if name in answer.headers]
        return Response(101, headers=agreed, upgrade=Upgrade(lambda wire: _relay(wire, answer), answer.close))

    async def read(self, endpoint: KubeletEndpoint, question: KubeletRequest) -> Response:
        """A text, as it comes."""
        answer = await self._ask(endpoint, question)
        if answer.status != 200:
            raise await _refusal(answer)
        return text_response(answer.body(), answer.close)

    async def _ask(self, endpoint: KubeletEndpoint, question: KubeletRequest) -> KubeletResponse:
        where = f"[{endpoint.host}]:{endpoint.port}" if ":" in endpoint.host else f"{endpoint.host}:{endpoint.port}"
        try:
            async with asyncio.timeout(_PATIENCE):
                request = request_head(question.method, question.target, where, question.passed)
                return await send_request(endpoint.host, endpoint.port, self._tls(), endpoint.believe, request)
        except OSError as error:  # and TimeoutError, which says nothing
            why = str(error) or "not in time"
            raise ServiceUnavailable(f"the node does not answer at {where}: {why}") from error

    def _tls(self) -> ssl.SSLContext:
        """Made for every connection: certificates are renewed."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # see the fingerprint
        identity = self.identity()
        context.load_cert_chain(identity.certificate, identity.key)
        return context


async def _relay(client: ByteStream, answer: KubeletResponse) -> None:
    """Until one of them ends."""
    kubelet = answer.wire()

    async def pass_on(source: ByteStream, target: ByteStream) -> None:
        while data := await source.receive():
            await target.send(data)

    ways = [asyncio.create_task(pass_on(client, kubelet)), asyncio.create_task(pass_on(kubelet, client))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        answer.close()
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


async def _refusal(answer: KubeletResponse) -> ApiError:
    """What the kubelet says instead, as a Status or in words."""
    text = b""
    body = answer.body()
    try:
        async with asyncio.timeout(_PATIENCE):
            async for piece in body:
                text += piece
                if len(text) > _LONGEST_REFUSAL:
                    break
    except TimeoutError:
        pass
    finally:
        await body.aclose()
    try:
        said = orjson.loads(text)
    except orjson.JSONDecodeError:
        said = {"kind": "Status", "message": text.decode(errors="replace").strip()}
    if answer.status < 400:
        return ServiceUnavailable(f"the node answered {answer.status}, which makes no sense")
    error = from_status(said, answer.status)
    # Whether we may is between us and the node: the client has permission, or would not be here.
    return ServiceUnavailable(f"the node refused: {error.message}") if answer.status in (401, 403) else error
