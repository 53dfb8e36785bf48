"""Streaming responses: exec and attach, port-forward, and text; over WebSocket or SPDY as the client requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import Final

from sandpool.kube.byte_stream import ByteStream
from sandpool.kube.errors import BadRequest
from sandpool.kube.spdy_session import SpdySession
from sandpool.server.request.messages import Response, Upgrade, WatchLine, WatchStream
from sandpool.server.streams import port_forward, remote_command
from sandpool.server.streams.options import StdStreams
from sandpool.server.streams.websocket import WebSocket, WebSocketByteStream, accept_headers

_WEBSOCKET: Final = "websocket"
_SPDY: Final = "spdy/3.1"
_STREAM_PROTOCOL: Final = "x-stream-protocol-version"


def exec_response(headers: Mapping[str, str], streams: StdStreams, work: remote_command.Work) -> Response:
    async def over_websocket(wire: ByteStream) -> None:
        await remote_command.over_websocket(WebSocket(wire), work, streams)

    async def over_spdy(wire: ByteStream) -> None:
        await remote_command.over_spdy(SpdySession(wire), work, streams)

    if _wants(headers, _WEBSOCKET):
        return _switch(_websocket_headers(headers, remote_command.WEBSOCKET_PROTOCOLS), over_websocket)
    return _switch(_spdy_headers(headers, remote_command.SPDY_PROTOCOLS), over_spdy)


def port_forward_response(headers: Mapping[str, str], dial: port_forward.Dial) -> Response:
    async def over_websocket(wire: ByteStream) -> None:
        await port_forward.forward(SpdySession(WebSocketByteStream(WebSocket(wire))), dial)

    async def over_spdy(wire: ByteStream) -> None:
        await port_forward.forward(SpdySession(wire), dial)

    if _wants(headers, _WEBSOCKET):
        return _switch(_websocket_headers(headers, (port_forward.TUNNEL,)), over_websocket)
    return _switch(_spdy_headers(headers, (port_forward.PROTOCOL,)), over_spdy)


def text_response(pieces: AsyncIterator[bytes], abandon: Callable[[], None] = lambda: None) -> Response:
    """Stream text in pieces. ``abandon`` is called when the stream ends, even if it was never read."""
    ending = asyncio.Event()

    def end() -> None:
        ending.set()
        abandon()

    async def lines() -> AsyncGenerator[list[WatchLine], None]:
        ended = asyncio.ensure_future(ending.wait())
        coming: asyncio.Future[bytes] | None = None
        try:
            while True:
                coming = asyncio.ensure_future(anext(pieces))
                await asyncio.wait((coming, ended), return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    return
                try:
                    yield [WatchLine("", None, b"", coming.result())]
                except StopAsyncIteration:
                    return
        finally:
            ended.cancel()
            if coming is not None and not coming.done():
                coming.cancel()
                await asyncio.wait((coming,))
            if isinstance(pieces, AsyncGenerator):
                await pieces.aclose()

    return Response(content_type="text/plain", stream=WatchStream(lines(), end))


def _wants(headers: Mapping[str, str], protocol: str) -> bool:
    return headers.get("upgrade", "").lower() == protocol


def _chosen(offered: str, known: tuple[str, ...]) -> str:
    offers = [offer.strip() for offer in offered.split(",")]
    for protocol in known:
        if protocol in offers:
            return protocol
    raise BadRequest(f"unable to negotiate protocol: client supports {offers}, server supports {list(known)}")


def _websocket_headers(headers: Mapping[str, str], known: tuple[str, ...]) -> list[tuple[str, str]]:
    protocol = _chosen(headers.get("sec-websocket-protocol", ""), known)
    key = headers.get("sec-websocket-key")
    if not key:
        raise BadRequest("unable to upgrade: missing Sec-WebSocket-Key header in request")
    return accept_headers(key, protocol)


def _spdy_headers(headers: Mapping[str, str], known: tuple[str, ...]) -> list[tuple[str, str]]:
    if not _wants(headers, _SPDY):
        raise BadRequest("unable to upgrade: missing upgrade headers in request")
    protocol = _chosen(headers.get(_STREAM_PROTOCOL, ""), known)
    return [("Upgrade", "SPDY/3.1"), ("Connection", "Upgrade"), ("X-Stream-Protocol-Version", protocol)]


def _switch(headers: list[tuple[str, str]], run: Callable[[ByteStream], Awaitable[None]]) -> Response:
    return Response(101, headers=headers, upgrade=Upgrade(run))
