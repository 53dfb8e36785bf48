"""The WebSocket client against wsproto, which plays the server."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, Pong, TextMessage

from sandpool.kube.websocket import ClientWebSocket, WebSocketBytes, WebSocketError, accept_token, new_key


class Wire:
    """A connection on which these bytes arrive. Nothing listens to the answers."""

    def __init__(self, *arriving: bytes) -> None:
        self.arriving = [*arriving, b""]

    async def receive(self) -> bytes:
        return self.arriving.pop(0) if self.arriving else b""

    async def send(self, data: bytes) -> None: ...

    async def close(self) -> None: ...


class Server:
    """The other end. ``heard`` are the events that the client sent."""

    def __init__(self) -> None:
        self.connection = Connection(ConnectionType.SERVER)
        self.outward: asyncio.Queue[bytes] = asyncio.Queue()
        self.heard: list[Event] = []

    def say(self, *events: Event) -> None:
        for event in events:
            self.outward.put_nowait(self.connection.send(event))

    async def receive(self) -> bytes:
        return await self.outward.get()

    async def send(self, data: bytes) -> None:
        self.connection.receive_data(data)
        self.heard += self.connection.events()

    async def close(self) -> None: ...


def test_accept_token_is_that_of_the_rfc() -> None:
    assert accept_token("dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    assert new_key() != new_key()


async def test_fragmented_messages_are_assembled() -> None:
    server = Server()
    server.say(BytesMessage(b"ab", message_finished=False), BytesMessage(b"cd"), TextMessage("text"), BytesMessage(b""))
    socket = ClientWebSocket(server)
    assert [await socket.receive() for _ in range(3)] == [b"abcd", b"text", b""]


async def test_message_can_arrive_byte_by_byte() -> None:
    server = Server()
    for byte in server.connection.send(BytesMessage(b"x" * 300)):
        server.outward.put_nowait(bytes([byte]))
    assert await ClientWebSocket(server).receive() == b"x" * 300


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536, 200_000])
async def test_messages_of_every_length_arrive_in_both_directions(size: int) -> None:
    server = Server()
    content = bytes(each % 251 for each in range(size))
    socket = ClientWebSocket(server)
    await socket.send(content)
    assert b"".join(event.data for event in server.heard if isinstance(event, BytesMessage)) == content
    server.say(BytesMessage(content))
    assert await socket.receive() == content


async def test_ping_is_answered() -> None:
    server = Server()
    server.say(Ping(b"1"), BytesMessage(b"x"))
    await ClientWebSocket(server).receive()
    assert server.heard == [Pong(b"1")]


async def test_close_is_answered_and_ends_the_socket() -> None:
    server = Server()
    server.say(BytesMessage(b"x"), CloseConnection(1000))
    socket = ClientWebSocket(server)
    assert [await socket.receive(), await socket.receive(), await socket.receive()] == [b"x", None, None]
    assert isinstance(server.heard[0], CloseConnection)
    await socket.send(b"nothing is sent after a close")
    assert len(server.heard) == 1


async def test_broken_connection_ends_the_socket() -> None:
    server = Server()
    server.outward.put_nowait(b"")
    assert await ClientWebSocket(server).receive() is None


async def test_empty_message_does_not_end_a_tunnel() -> None:
    server = Server()
    server.say(BytesMessage(b""), BytesMessage(b"a"), BytesMessage(b""), BytesMessage(b"b"), CloseConnection(1000))
    tunnel = WebSocketBytes(ClientWebSocket(server))
    assert [await tunnel.receive(), await tunnel.receive(), await tunnel.receive()] == [b"a", b"b", b""]


@given(st.binary(max_size=100))
def test_any_bytes_are_messages_or_an_error_or_the_end(data: bytes) -> None:
    async def feed() -> None:
        socket = ClientWebSocket(Wire(data))
        with suppress(WebSocketError):
            while await socket.receive() is not None:
                pass

    asyncio.run(feed())
