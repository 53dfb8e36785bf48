from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, Pong, TextMessage

from sandpool.server.streams.websocket import Piece, WebSocket, WebSocketByteStream, accept_headers


class Client:
    """The other end, which wsproto plays too."""

    def __init__(self) -> None:
        self.connection = Connection(ConnectionType.CLIENT)
        self.inward: asyncio.Queue[bytes] = asyncio.Queue()
        self.heard: list[Event] = []

    def say(self, *events: Event) -> None:
        for event in events:
            self.inward.put_nowait(self.connection.send(event))

    async def receive(self) -> bytes:
        return await self.inward.get()

    async def send(self, data: bytes) -> None:
        self.connection.receive_data(data)
        self.heard += self.connection.events()

    async def close(self) -> None: ...


def test_handshake_follows_the_rfc() -> None:
    headers = dict(accept_headers("dGhlIHNhbXBsZSBub25jZQ==", "v5.channel.k8s.io"))
    # The example of RFC 6455.
    assert headers["Sec-WebSocket-Accept"] == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    assert headers["Sec-WebSocket-Protocol"] == "v5.channel.k8s.io"


async def test_messages_are_handed_on_in_the_parts_that_arrive() -> None:
    client = Client()
    client.say(BytesMessage(b"ab", message_finished=False), BytesMessage(b"cd"), TextMessage("text"), BytesMessage(b""))
    socket = WebSocket(client)
    parts = [Piece(b"ab", False), Piece(b"cd", True), Piece(b"text", True), Piece(b"", True)]
    assert [await socket.receive() for _ in parts] == parts


async def test_part_of_a_message_does_not_wait_for_its_end() -> None:
    client = Client()
    client.inward.put_nowait(client.connection.send(BytesMessage(b"x" * 1000))[:500])
    piece = await WebSocket(client).receive()
    assert piece is not None and 0 < len(piece.data) < 1000 and not piece.is_last


async def test_ping_is_answered() -> None:
    client = Client()
    client.say(Ping(b"1"), BytesMessage(b"x"))
    await WebSocket(client).receive()
    assert client.heard == [Pong(b"1")]


async def test_close_is_answered_and_ends_the_socket() -> None:
    client = Client()
    client.say(BytesMessage(b"x"), CloseConnection(1000))
    socket = WebSocket(client)
    assert [await socket.receive(), await socket.receive(), await socket.receive()] == [Piece(b"x", True), None, None]
    assert client.heard == [CloseConnection(1000, "")]
    await socket.send(b"after the end")


async def test_broken_connection_ends_the_socket() -> None:
    client = Client()
    client.inward.put_nowait(b"")
    assert await WebSocket(client).receive() is None


async def test_empty_message_does_not_end_the_socket() -> None:
    client = Client()
    client.say(BytesMessage(b""), BytesMessage(b"a"), BytesMessage(b""), BytesMessage(b"b"), CloseConnection(1000))
    wire = WebSocketByteStream(WebSocket(client))
    assert [await wire.receive(), await wire.receive(), await wire.receive()] == [b"a", b"b", b""]


@pytest.mark.parametrize("size", [0, 1, 70_000])
async def test_sent_bytes_arrive(size: int) -> None:
    client = Client()
    await WebSocket(client).send(b"x" * size)
    assert b"".join(event.data for event in client.heard if isinstance(event, BytesMessage)) == b"x" * size


@given(st.binary(max_size=100))
def test_any_bytes_are_messages_or_end_the_socket(data: bytes) -> None:
    async def feed() -> None:
        client = Client()
        client.inward.put_nowait(data or b"x")
        client.inward.put_nowait(b"")
        socket = WebSocket(client)
        while await socket.receive() is not None:
            pass

    asyncio.run(feed())
