from __future__ import annotations

import asyncio
import socket

from sandpool.kube.byte_stream import AsyncioByteStream, MemoryByteStream


async def test_bytes_arrive_at_the_other_end() -> None:
    one, two = MemoryByteStream.pair()
    await one.send(b"there")
    await two.send(b"back")
    assert (await two.receive(), await one.receive()) == (b"there", b"back")


async def test_a_sender_waits_for_a_reader_that_is_far_behind() -> None:
    one, two = MemoryByteStream.pair()
    await one.send(bytes(1 << 18))
    sending = asyncio.create_task(one.send(b"more"))
    await asyncio.sleep(0)
    assert not sending.done()
    assert len(await two.receive()) == 1 << 18
    await sending
    assert await two.receive() == b"more"


async def test_what_was_sent_before_the_end_is_received() -> None:
    one, two = MemoryByteStream.pair()
    await one.send(b"last words")
    await one.close()
    assert [await two.receive(), await two.receive()] == [b"last words", b""]


async def test_closing_wakes_both_sides_and_sending_does_nothing_afterwards() -> None:
    one, two = MemoryByteStream.pair()
    await one.send(bytes(1 << 18))
    waiting = [asyncio.create_task(one.send(b"more")), asyncio.create_task(one.receive())]
    await asyncio.sleep(0)
    await two.close()
    assert await asyncio.gather(*waiting) == [None, b""]
    await two.send(b"lost")
    assert await one.receive() == b""


async def test_bytes_before_a_reset_are_received() -> None:
    """A StreamReader alone raises the error first, and the bytes are lost."""
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    stream = AsyncioByteStream(reader, writer)
    reader.feed_data(b"the exit code")
    reader.set_exception(ConnectionResetError())
    assert [await stream.receive() for _ in range(2)] == [b"the exit code", b""]
    await stream.close()
    theirs.close()
