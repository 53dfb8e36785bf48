"""Calls of the Connect protocol over HTTP: reads requests, performs calls, and writes answers and streams."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any, Final, NamedTuple, cast

import orjson
from aiohttp import web

from sandpool.e2b.errors import Refusal, refusal_of
from sandpool.e2b.rpc import END, MAX_MESSAGE, STATUS, Code, EnvelopeReader, Message, RpcError, end_of_stream, envelope
from sandpool.e2b.running import RunningSandbox
from sandpool.kube.errors import ApiError
from sandpool.service.errors import ServiceError

#: Seconds in which the body of a call must have arrived, other than that of a stream.
BODY_SECONDS: Final = 60.0
_KEEPALIVE_SECONDS: Final = 90.0
_UNARY: Final = "application/json"
_STREAM: Final = "application/connect+json"
_CHUNK: Final = 1 << 16


class Call(NamedTuple):
    """A call without its message. ``timeout`` is in seconds."""

    sandbox: RunningSandbox
    user: str
    timeout: float | None


Unary = Callable[[Call, Message], Awaitable[Mapping[str, Any]]]
ServerStream = Callable[[Call, Message], AsyncIterator[Mapping[str, Any]]]
ClientStream = Callable[[Call, AsyncIterator[Message]], Awaitable[Mapping[str, Any]]]


async def unary(request: web.Request, sandbox: RunningSandbox, method: Unary) -> web.StreamResponse:
    """Serve a call with one message each way."""
    _check_type(request, _UNARY)
    try:
        async with asyncio.timeout(BODY_SECONDS):
            message = Message.decode(await _body(request))
        answer = await method(_call(request, sandbox), message)
    except RpcError as error:
        return web.Response(status=STATUS[error.code], body=orjson.dumps(error.document), content_type=_UNARY)
    return web.Response(body=orjson.dumps(answer), content_type=_UNARY)


async def server_stream(
    request: web.Request, sandbox: RunningSandbox, method: ServerStream, keepalive: Mapping[str, Any]
) -> web.StreamResponse:
    """Serve a call that is answered with a stream. While nothing happens, ``keepalive`` is sent from time to time."""
    _check_type(request, _STREAM)
    call = _call(request, sandbox)
    response = web.StreamResponse(headers={"Content-Type": _STREAM})
    error: RpcError | None = None
    idle = envelope(orjson.dumps(keepalive))
    try:
        async with asyncio.timeout(BODY_SECONDS):
            message = await _only_message(request)
        async with aclosing(cast("Any", method(call, message))) as events:
            async for event in _with_pauses(events, _keepalive_seconds(request), call.timeout):
                if not response.prepared:
                    await response.prepare(request)
                await response.write(idle if event is None else envelope(orjson.dumps(event)))
    except RpcError as failed:
        error = failed
    except TimeoutError:
        error = RpcError(Code.DEADLINE_EXCEEDED, "the call took longer than allowed")
    except (ServiceError, ApiError, OSError) as failed:
        if request.transport is None:
            raise  # the client has gone
        error = RpcError(Code.UNAVAILABLE, refusal_of(failed).message)
    if not response.prepared:
        await response.prepare(request)
    await response.write(end_of_stream(error))
    await response.write_eof()
    return response


async def client_stream(request: web.Request, sandbox: RunningSandbox, method: ClientStream) -> web.StreamResponse:
    """Serve a call whose request is a stream and whose answer is one message."""
    _check_type(request, _STREAM)
    try:
        answer = await method(_call(request, sandbox), _messages(request))
    except RpcError as error:
        body = end_of_stream(error)
    else:
        body = envelope(orjson.dumps(answer)) + end_of_stream()
    return web.Response(body=body, headers={"Content-Type": _STREAM})


async def _with_pauses(events: AsyncIterator[Any], pause: float, timeout: float | None) -> AsyncIterator[Any]:
    """The events, and None whenever none came for ``pause`` seconds. Raises ``RpcError`` after ``timeout`` seconds."""
    clock = asyncio.get_running_loop().time
    end = None if timeout is None else clock() + timeout
    coming: asyncio.Task[Any] | None = None
    try:
        while True:
            if coming is None:
                coming = asyncio.ensure_future(anext(events, _Over))
            left = pause if end is None else min(pause, end - clock())
            done, _ = await asyncio.wait((coming,), timeout=max(left, 0.0))
            if done:
                event, coming = coming.result(), None
                if event is _Over:
                    return
                yield event
            elif end is not None and clock() >= end:
                raise RpcError(Code.DEADLINE_EXCEEDED, "the call took longer than allowed")
            else:
                yield None
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)


class _Over:
    """The end of the events."""


async def _messages(request: web.Request) -> AsyncIterator[Message]:
    reader = EnvelopeReader()
    async for data in request.content.iter_chunked(_CHUNK):
        for found in reader.feed(data):
            if found.flags & END:
                return
            yield Message.decode(found.data)
    reader.finish()


async def _only_message(request: web.Request) -> Message:
    found: Message | None = None
    async for message in _messages(request):
        if found is not None:
            raise _not_one()  # now, because there may be any number of them
        found = message
    if found is None:
        raise _not_one()
    return found


def _not_one() -> RpcError:
    return RpcError(Code.INVALID_ARGUMENT, "the request must have exactly one message")


async def _body(request: web.Request) -> bytes:
    body = bytearray()
    async for data in request.content.iter_chunked(_CHUNK):
        body += data
        if len(body) > MAX_MESSAGE:
            raise RpcError(Code.RESOURCE_EXHAUSTED, f"the message is larger than {MAX_MESSAGE >> 20} MiB")
    return bytes(body)


def _call(request: web.Request, sandbox: RunningSandbox) -> Call:
    return Call(sandbox, basic_user(request.headers.get("Authorization", "")), _timeout(request))


def basic_user(authorization: str) -> str:
    """The user that a client wants to be in the sandbox, from the header Authorization. It proves nothing."""
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return ""
    with suppress(ValueError, binascii.Error):
        user = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")[0]
        if "\0" not in user and len(user) <= 64:
            return user
    raise Refusal(400, "the header Authorization cannot be read")


def _timeout(request: web.Request) -> float | None:
    text = request.headers.get("Connect-Timeout-Ms", "")
    if not text:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 10:
        raise Refusal(400, "the header Connect-Timeout-Ms must be a number of up to ten digits")
    return int(text) / 1000


def _keepalive_seconds(request: web.Request) -> float:
    text = request.headers.get("Keepalive-Ping-Interval", "")
    return max(1.0, float(text)) if text.isascii() and text.isdecimal() and len(text) < 6 else _KEEPALIVE_SECONDS


def _check_type(request: web.Request, wanted: str) -> None:
    if request.content_type != wanted:
        raise Refusal(415, f"this call takes {wanted}: only JSON messages are supported")
