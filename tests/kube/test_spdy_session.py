from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio

from sandpool.kube import spdy
from sandpool.kube.spdy import Control, Data, Decoder, Encoder
from sandpool.kube.spdy_session import MOST_STREAMS, SpdySession, SpdyStream
from sandpool.testing.waiting import WITHIN


class Pipe:
    """The client's end of a wire."""

    def __init__(self) -> None:
        self.inward: asyncio.Queue[bytes] = asyncio.Queue()
        self.encoder = Encoder()
        self.decoder = Decoder()
        self.frames: asyncio.Queue[Control | Data] = asyncio.Queue()

    def say(self, *frames: Control | Data) -> None:
        for frame in frames:
            data = self.encoder.data(frame) if isinstance(frame, Data) else self.encoder.control(frame)
            self.inward.put_nowait(data)

    async def hear(self) -> Control | Data:
        async with asyncio.timeout(WITHIN):
            return await self.frames.get()

    async def receive(self) -> bytes:
        return await self.inward.get()

    async def send(self, data: bytes) -> None:
        for frame in self.decoder.feed(data):
            self.frames.put_nowait(frame)

    async def close(self) -> None: ...


@pytest_asyncio.fixture
async def talk() -> AsyncIterator[tuple[Pipe, SpdySession]]:
    pipe = Pipe()
    session = SpdySession(pipe)
    running = asyncio.create_task(session.run())
    yield pipe, session
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def opened(pipe: Pipe, session: SpdySession, stream_id: int = 1, *, fin: bool = False) -> SpdyStream:
    pipe.say(Control(spdy.SYN_STREAM, stream_id, fin, {"streamtype": "data"}))
    assert await pipe.hear() == Control(spdy.SYN_REPLY, stream_id)
    stream = await session.opened.get()
    assert stream is not None
    return stream


async def test_stream_carries_data_both_ways(talk: tuple[Pipe, SpdySession]) -> None:
    pipe, session = talk
    stream = await opened(pipe, session)
    assert stream.headers == {"streamtype": "data"}
    pipe.say(Data(1, b"abc"), Data(1, b"def", fin=True))
    received = b""
    while piece := await stream.receive():
        received += piece
    assert received == b"abcdef"
    await stream.send(b"x" * 40_000)
    await stream.close()
    pieces = [await pipe.hear() for _ in range(3)]
    assert pieces == [Data(1, b"x" * 32768), Data(1, b"x" * 7232), Data(1, b"", fin=True)]


async def test_ping_is_answered(talk: tuple[Pipe, SpdySession]) -> None:
    pipe, _ = talk
    pipe.say(Control(spdy.PING, number=7))
    assert await pipe.hear() == Control(spdy.PING, number=7)


async def test_reset_ends_both_halves(talk: tuple[Pipe, SpdySession]) -> None:
    pipe, session = talk
    stream = await opened(pipe, session)
    pipe.say(Control(spdy.RST_STREAM, 1, number=spdy.CANCEL))
    assert await stream.receive() == b""
    await stream.send(b"after the end")
    pipe.say(Control(spdy.PING, number=1))
    assert await pipe.hear() == Control(spdy.PING, number=1)


async def test_end_of_the_connection_ends_every_stream(talk: tuple[Pipe, SpdySession]) -> None:
    pipe, session = talk
    stream = await opened(pipe, session)
    pipe.inward.put_nowait(b"")
    assert await stream.receive() == b""
    assert await session.opened.get() is None


async def test_protocol_error_ends_the_session(talk: tuple[Pipe, SpdySession]) -> None:
    pipe, session = talk
    pipe.say(Control(spdy.SYN_STREAM, 2))
    assert await pipe.hear() == Control(spdy.GOAWAY, 0, number=spdy.PROTOCOL_ERROR)
    assert await session.opened.get() is None


async def test_unread_stream_stops_the_sender(talk: tuple[Pipe, SpdySession]) -> None:
    pipe, session = talk
    stream = await opened(pipe, session)
    for _ in range(40):
        pipe.say(Data(1, b"x" * 65536))
    pipe.say(Data(1, b"", fin=True))
    for _ in range(200):
        await asyncio.sleep(0)
    assert 20 < pipe.inward.qsize() < 30, "it waits until what is there was read"
    size = 0
    while piece := await stream.receive():
        size += len(piece)
    assert size == 40 * 65536


async def test_unread_bytes_of_all_streams_stop_the_sender(talk: tuple[Pipe, SpdySession]) -> None:
    pipe, session = talk
    streams = [await opened(pipe, session, number) for number in range(1, 41, 2)]
    for stream in streams:
        pipe.say(Data(stream.id, b"x" * 65536), Data(stream.id, b"y" * 65536))
    for _ in range(200):
        await asyncio.sleep(0)
    assert 20 < pipe.inward.qsize() < 30
    for stream in streams:
        assert await stream.receive() == b"x" * 65536 + b"y" * 65536 or await stream.receive() == b"y" * 65536
    assert pipe.inward.empty()


async def test_further_streams_are_reset_and_leave_the_others_alone(talk: tuple[Pipe, SpdySession]) -> None:
    pipe, session = talk
    for number in range(1, 2 * MOST_STREAMS, 2):
        await opened(pipe, session, number)
    last = 2 * MOST_STREAMS + 1
    pipe.say(Control(spdy.SYN_STREAM, last, headers={"streamtype": "data"}))
    assert await pipe.hear() == Control(spdy.RST_STREAM, last, number=spdy.REFUSED_STREAM)
    pipe.say(Control(spdy.RST_STREAM, 1, number=spdy.CANCEL))
    await opened(pipe, session, last)


async def test_headers_of_all_streams_are_limited_because_they_are_compressed(talk: tuple[Pipe, SpdySession]) -> None:
    pipe, _ = talk
    heard = []
    for number in range(1, 21, 2):
        pipe.say(Control(spdy.SYN_STREAM, number, headers={"x": "a" * 60_000}))
        heard.append(await pipe.hear())
    kinds = [frame.kind for frame in heard if isinstance(frame, Control)]
    assert kinds == [spdy.SYN_REPLY] * 4 + [spdy.RST_STREAM] * 6
