"""``exec``, ``attach``, ``portforward`` and ``log`` of pods: what is asked for, and in which of its languages.

Nothing of this is stored; the pod is looked up, the way in is the ``PodDoor``'s. Without one (an API server alone, or a
pod on a node that is not ours) the answer says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from datetime import datetime
from typing import Final
from urllib.parse import parse_qsl

from sandpool.api.resource import Object
from sandpool.engine.clock import Clock
from sandpool.kube.door import LogQuery, NotPossible, PodDoor
from sandpool.kube.errors import ApiError, BadRequest, NotFound, ServiceUnavailable
from sandpool.server.exchange import Response, ServerRequest, Upgrade, WatchLine, WatchStream
from sandpool.server.requests import truthy
from sandpool.server.streams import forwarding, remote
from sandpool.server.streams.spdy_session import SpdySession
from sandpool.server.streams.websocket import WebSocket, WebSocketWire, accept_headers
from sandpool.server.streams.wire import Wire

_WEBSOCKET: Final = "websocket"
_SPDY: Final = "spdy/3.1"
_STREAM_PROTOCOL: Final = "x-stream-protocol-version"
_DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"


class PodStreams:
    def __init__(self, clock: Clock, door: PodDoor | None) -> None:
        self.clock = clock
        self.door = door

    def answer(self, request: ServerRequest, subresource: str, pod: Object) -> Response:
        door = self.door
        if door is None or not pod["spec"].get("nodeName"):
            raise _not_running(pod, "no node of this server runs it")
        query = _Query(request.raw_query or "&".join(f"{name}={value}" for name, value in request.query.items()))
        match subresource:
            case "log":
                return self._log(door, pod, query)
            case "portforward":
                return self._forward(door, pod, request.headers)
            case "exec":
                command = tuple(query.all("command"))
                if not command:
                    raise BadRequest("you must specify at least one command to execute")
                container = _container(pod, query.get("container"))
                return self._remote(
                    request.headers, query, lambda client: door.execute(pod, container, command, client)
                )
        container = _container(pod, query.get("container"))
        return self._remote(request.headers, query, lambda client: door.attach(pod, container, client))

    def _remote(self, headers: Mapping[str, str], query: _Query, work: remote.Work) -> Response:
        terminal = query.flag("tty")
        streams = {name: query.flag(name) for name in ("stdin", "stdout", "stderr")}
        if not any(streams.values()):
            raise BadRequest("you must specify at least 1 of stdin, stdout, stderr")

        async def over_websocket(wire: Wire) -> None:
            await remote.over_websocket(WebSocket(wire), work, terminal=terminal, **streams)

        async def over_spdy(wire: Wire) -> None:
            await remote.over_spdy(SpdySession(wire), work, terminal=terminal, **streams)

        if _wants(headers, _WEBSOCKET):
            protocol = _chosen(headers.get("sec-websocket-protocol", ""), remote.WEBSOCKET_PROTOCOLS)
            return _switch(accept_headers(headers["sec-websocket-key"], protocol), over_websocket)
        return _switch(_spdy_headers(headers, remote.SPDY_PROTOCOLS), over_spdy)

    def _forward(self, door: PodDoor, pod: Object, headers: Mapping[str, str]) -> Response:
        async def over_websocket(wire: Wire) -> None:
            await forwarding.forward(SpdySession(WebSocketWire(WebSocket(wire))), lambda port: door.dial(pod, port))

        async def over_spdy(wire: Wire) -> None:
            await forwarding.forward(SpdySession(wire), lambda port: door.dial(pod, port))

        if _wants(headers, _WEBSOCKET):
            protocol = _chosen(headers.get("sec-websocket-protocol", ""), (forwarding.TUNNEL,))
            return _switch(accept_headers(headers["sec-websocket-key"], protocol), over_websocket)
        return _switch(_spdy_headers(headers, (forwarding.PROTOCOL,)), over_spdy)

    def _log(self, door: PodDoor, pod: Object, query: _Query) -> Response:
        since = query.number("sinceSeconds")
        earliest = None if since is None else self.clock.now().timestamp() - since
        if text := query.get("sinceTime"):
            earliest = _time(text)
        wanted = LogQuery(
            container=_container(pod, query.get("container")),
            follow=query.flag("follow"),
            previous=query.flag("previous"),
            timestamps=query.flag("timestamps"),
            since=earliest,
            tail=query.number("tailLines"),
            limit=query.number("limitBytes"),
        )
        try:
            pieces = door.logs(pod, wanted)
        except NotPossible as error:
            raise BadRequest(str(error)) from error
        return Response(content_type="text/plain", stream=_text(pieces))


class _Query:
    """Parameters, some of which come more than once."""

    def __init__(self, text: str) -> None:
        self._pairs = parse_qsl(text, keep_blank_values=True)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self._pairs if key == name]

    def get(self, name: str) -> str:
        return next(iter(self.all(name)), "")

    def flag(self, name: str) -> bool:
        found = self.all(name)
        return bool(found) and truthy(found[0])

    def number(self, name: str) -> int | None:
        text = self.get(name)
        if not text:
            return None
        try:
            number = int(text)
        except ValueError:
            raise BadRequest(f'{name}: "{text}" is not a number') from None
        if number < 0:
            raise BadRequest(f"{name}: must be greater than or equal to 0")
        return number


def _container(pod: Object, wanted: str) -> str:
    spec = pod["spec"]
    kinds = ("initContainers", "containers", "ephemeralContainers")
    names = [container["name"] for kind in kinds for container in spec.get(kind) or ()]
    name = pod["metadata"]["name"]
    if wanted:
        if wanted not in names:
            raise BadRequest(f"container {wanted} is not valid for pod {name}")
        return wanted
    main = [container["name"] for container in spec["containers"]]
    default: str = (pod["metadata"].get("annotations") or {}).get(_DEFAULT_CONTAINER) or ""
    if default in main:
        return default
    if len(main) > 1:
        choices = " ".join(main)
        raise BadRequest(f"a container name must be specified for pod {name}, choose one of: [{choices}]")
    only: str = main[0]
    return only


def _wants(headers: Mapping[str, str], protocol: str) -> bool:
    return headers.get("upgrade", "").lower() == protocol


def _chosen(offered: str, known: tuple[str, ...]) -> str:
    offers = [offer.strip() for offer in offered.split(",")]
    for protocol in known:
        if protocol in offers:
            return protocol
    raise BadRequest(f"unable to negotiate protocol: client supports {offers}, server supports {list(known)}")


def _spdy_headers(headers: Mapping[str, str], known: tuple[str, ...]) -> list[tuple[str, str]]:
    if not _wants(headers, _SPDY):
        raise BadRequest("unable to upgrade: missing upgrade headers in request")
    protocol = _chosen(headers.get(_STREAM_PROTOCOL, ""), known)
    return [("Upgrade", "SPDY/3.1"), ("Connection", "Upgrade"), ("X-Stream-Protocol-Version", protocol)]


def _switch(headers: list[tuple[str, str]], run: Callable[[Wire], Awaitable[None]]) -> Response:
    return Response(101, headers=headers, upgrade=Upgrade(run))


def _not_running(pod: Object, why: str) -> ApiError:
    if pod["metadata"].get("deletionTimestamp"):
        return NotFound(f'pod "{pod["metadata"]["name"]}" is being deleted')
    return ServiceUnavailable(f'pod "{pod["metadata"]["name"]}" cannot be reached: {why}')


def _text(pieces: AsyncIterator[bytes]) -> WatchStream:
    """Text as a stream of lines that are ready to be sent."""
    ending = asyncio.Event()

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

    return WatchStream(lines(), ending.set)


def _time(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise BadRequest(f'sinceTime: "{text}" is not a time') from None
