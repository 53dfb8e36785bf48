"""Any input to the exec and port-forward protocols ends cleanly."""

from __future__ import annotations

import asyncio
import socket
import zlib
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, TextMessage

from sandpool.kube import spdy
from sandpool.kube.pod_access import Size, StreamClient
from sandpool.kube.spdy import Control, Data, Decoder, Encoder
from sandpool.kube.spdy_session import SpdySession
from sandpool.server.streams.options import StdStreams
from sandpool.server.streams.port_forward import forward
from sandpool.server.streams.remote_command import over_spdy, over_websocket
from sandpool.server.streams.websocket import WebSocket, WebSocketByteStream

WITHIN = 60.0


class Script:
    """A client that says all it has to say, in pieces, and hangs up or ``stays``. ``sent`` is what it was told, and
    ``heard`` how many bytes of it were read."""

    def __init__(self, said: bytes, step: int, *, stays: bool = False) -> None:
        self.stays = stays
        self._pieces = [said[start : start + step] for start in range(0, len(said), step)]
        self.sent = bytearray()
        self.heard = 0

    async def receive(self) -> bytes:
        await asyncio.sleep(0)
        if self.stays and not self._pieces:
            await asyncio.get_running_loop().create_future()
        piece = self._pieces.pop(0) if self._pieces else b""
        self.heard += len(piece)
        return piece

    async def send(self, data: bytes) -> None:
        self.sent += data

    async def close(self) -> None: ...


def lived(talk: Coroutine[Any, Any, None]) -> None:
    """Run to the end, within a time limit and without leftover tasks."""

    async def live() -> None:
        async with asyncio.timeout(WITHIN):
            await talk
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert not others, others

    asyncio.run(live())


async def work(client: StreamClient) -> int:
    """Reads all that was typed, and says how long it was."""
    size = 0
    while data := await client.receive():
        size += len(data)
    await client.write(b"%d" % size)
    return 0


CHANNELS = st.sampled_from([0, 1, 2, 3, 4, 5, 127, 254, 255])
SIZES = st.sampled_from(
    [
        b"",
        b"{}",
        b'{"Width":80,"Height":24}',
        b'{"Width":-1,"Height":1e99}',
        b'{"Width":1e999,"Height":1}',
        b'{"Width":"a"}',
        b"[]",
        b"\xff",
        b"null",
    ]
)
MESSAGES = st.one_of(
    st.builds(lambda channel, data: BytesMessage(bytes([channel]) + data), CHANNELS, SIZES | st.binary(max_size=40)),
    st.just(BytesMessage(b"")),
    st.just(BytesMessage(b"\xff\x00")),
    st.builds(TextMessage, st.text(max_size=10)),
    st.builds(lambda data: BytesMessage(data, message_finished=False), st.binary(max_size=10)),
    st.builds(Ping, st.binary(max_size=10)),
)


def encoded(events: list[Event]) -> bytes:
    connection = Connection(ConnectionType.CLIENT)
    # A message in parts is to be of one kind, which is for the client's library to see to.
    said, in_parts = b"", False
    for event in events:
        if isinstance(event, TextMessage) and in_parts:
            continue
        if isinstance(event, BytesMessage):
            in_parts = not event.message_finished
        said += connection.send(event)
    return said


class TestExec:
    @pytest.mark.parametrize(
        "size", ['{"Width":1e999,"Height":1}', '{"Width":-1,"Height":1}', '{"Width":65536,"Height":1}']
    )
    def test_invalid_terminal_size_is_ignored(self, size: str) -> None:
        async def sized(client: StreamClient) -> int:
            assert await client.next_size() == Size(80, 24)
            return 0

        sizes = [BytesMessage(b"\x04" + each.encode()) for each in (size, '{"Width":80,"Height":24}')]
        client = Script(encoded(list(sizes)), 1000, stays=True)
        lived(over_websocket(WebSocket(client), sized, StdStreams(True, stdout=True, stderr=True, terminal=True)))
        assert b"Success" in client.sent

    @pytest.mark.parametrize("pieces", [1, 100])
    def test_input_that_the_command_does_not_read_is_not_read_either(self, pieces: int) -> None:
        said = [BytesMessage(b"\0" + bytes((16 << 20) // pieces))] * pieces
        client = Script(encoded(list[Event](said)), 1 << 16, stays=True)
        read = []

        async def asleep(_: StreamClient) -> int:
            for _turn in range(1000):
                await asyncio.sleep(0)
            read.append(client.heard)
            return 0

        lived(over_websocket(WebSocket(client), asleep, StdStreams(True, stdout=True, stderr=True, terminal=False)))
        assert read[0] < 3 << 20

    def test_message_of_another_channel_has_a_limit(self) -> None:
        async def waiting(client: StreamClient) -> int:
            await client.receive()
            return 0

        client = Script(encoded([BytesMessage(b"\x04" + b" " * 100_000)]), 1 << 16, stays=True)
        lived(over_websocket(WebSocket(client), waiting, StdStreams(True, stdout=True, stderr=True, terminal=True)))
        assert client.sent[:1] == b"\x88", "the frame that closes a WebSocket"

    def test_sizes_are_not_kept_without_a_terminal(self) -> None:
        seen = []

        async def unsized(client: StreamClient) -> int:
            seen.append(await client.next_size())
            return 0

        client = Script(encoded([BytesMessage(b'\x04{"Width":80,"Height":24}'), CloseConnection(1000)]), 1000)
        lived(over_websocket(WebSocket(client), unsized, StdStreams(True, stdout=True, stderr=True, terminal=False)))
        assert Size(80, 24) not in seen

    @given(st.lists(MESSAGES, max_size=8), st.integers(1, 64), st.booleans(), st.booleans())
    def test_any_channels_end_cleanly(self, events: list[Event], step: int, stdin: bool, terminal: bool) -> None:
        client = Script(encoded([*events, CloseConnection(1000)]), step)
        lived(over_websocket(WebSocket(client), work, StdStreams(stdin, stdout=True, stderr=True, terminal=terminal)))

    @given(st.lists(MESSAGES, max_size=4), st.binary(max_size=60), st.integers(1, 64))
    @example([], b"\x82\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00", 64)
    def test_invalid_frames_end_cleanly(self, events: list[Event], noise: bytes, step: int) -> None:
        client = Script(encoded(list(events)) + noise, step)
        lived(over_websocket(WebSocket(client), work, StdStreams(True, stdout=True, stderr=True, terminal=False)))


NUMBERS = st.sampled_from([0, 1, 2, 3, 5, 7, 9, 11, 2**31 - 1])
HEADERS = st.dictionaries(
    st.sampled_from(["streamtype", "port", "requestid", "STREAMTYPE", "x"]),
    st.sampled_from(["data", "error", "stdin", "stdout", "stderr", "resize", "1", "80", "-1", "99999999999", "a", ""]),
    max_size=4,
)
FRAMES = st.one_of(
    st.builds(
        lambda stream, fin, headers: Control(spdy.SYN_STREAM, stream, fin, headers), NUMBERS, st.booleans(), HEADERS
    ),
    st.builds(Data, NUMBERS, SIZES | st.binary(max_size=40), st.booleans()),
    st.builds(lambda kind, stream, number: Control(kind, stream, number=number), st.integers(2, 12), NUMBERS, NUMBERS),
)
PAIR = [
    Control(spdy.SYN_STREAM, 1, headers={"streamtype": "error", "port": "80", "requestid": "0"}),
    Control(spdy.SYN_STREAM, 3, headers={"streamtype": "data", "port": "80", "requestid": "0"}),
]
REMOTE = [
    Control(spdy.SYN_STREAM, 2 * number + 1, headers={"streamtype": name})
    for number, name in enumerate(("error", "stdin", "stdout", "stderr"))
]


def framed(frames: list[Control | Data]) -> bytes:
    encoder = Encoder()
    return b"".join(encoder.data(each) if isinstance(each, Data) else encoder.control(each) for each in frames)


class Dialler:
    """The pod: echoes, on port 80 only. Every connection that was made is counted until it is closed."""

    def __init__(self) -> None:
        self.open: list[socket.socket] = []

    async def __call__(self, port: int) -> socket.socket:
        if port != 80:
            raise ConnectionRefusedError(111, "Connection refused")
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.close()
        self.open.append(ours)
        return ours

    def check(self) -> None:
        assert all(sock.fileno() < 0 for sock in self.open), "a connection stays open"


class TestForward:
    @given(st.lists(FRAMES, max_size=10), st.integers(1, 64), st.booleans())
    def test_any_frames_end_cleanly(self, frames: list[Control | Data], step: int, begun: bool) -> None:
        dial = Dialler()
        lived(forward(SpdySession(Script(framed([*(PAIR if begun else []), *frames]), step)), dial))
        dial.check()

    @given(st.lists(FRAMES, max_size=4), st.binary(max_size=60), st.integers(1, 64))
    @example([], zlib.compress(b"x" * 100_000), 64)
    def test_invalid_frames_end_cleanly(self, frames: list[Control | Data], noise: bytes, step: int) -> None:
        dial = Dialler()
        lived(forward(SpdySession(Script(framed([*PAIR, *frames]) + noise, step)), dial))
        dial.check()

    @given(st.lists(FRAMES, max_size=6), st.lists(st.integers(0, 30), max_size=10))
    def test_any_cut_of_websocket_messages_ends_cleanly(self, frames: list[Control | Data], cuts: list[int]) -> None:
        data, events = framed([*PAIR, *frames]), []
        for cut in cuts:
            events.append(BytesMessage(data[:cut]))
            data = data[cut:]
        dial = Dialler()
        client = Script(encoded([*events, BytesMessage(data), CloseConnection(1000)]), 50)
        lived(forward(SpdySession(WebSocketByteStream(WebSocket(client))), dial))
        dial.check()

    def test_streams_that_wait_for_their_other_half_make_room(self) -> None:
        halves = [
            Control(spdy.SYN_STREAM, number, headers={"streamtype": "data", "requestid": str(number)})
            for number in range(1, 401, 2)
        ]
        client = Script(framed(list[Control | Data](halves)), 4096)
        lived(forward(SpdySession(client), Dialler()))
        told = Decoder().feed(bytes(client.sent))
        reset = [frame.stream for frame in told if isinstance(frame, Control) and frame.kind == spdy.RST_STREAM]
        assert reset == list(range(1, 145, 2)), "the oldest ones; 128 stay"

    async def test_connection_ends_when_the_client_resets_its_stream(self) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)

        async def dial(port: int) -> socket.socket:
            return ours

        client = Script(
            framed([*PAIR, Control(spdy.RST_STREAM, PAIR[-1].stream, number=spdy.CANCEL)]), 4096, stays=True
        )
        forwarding = asyncio.create_task(forward(SpdySession(client), dial))
        theirs.setblocking(False)
        async with asyncio.timeout(WITHIN):
            assert await asyncio.get_running_loop().sock_recv(theirs, 1) == b""
            theirs.settimeout(WITHIN)
            with pytest.raises(BrokenPipeError):
                while True:  # the other half ends, too
                    theirs.send(b"x")
                    await asyncio.sleep(0)
        forwarding.cancel()
        await asyncio.gather(forwarding, return_exceptions=True)
        theirs.close()


class TestExecOverSpdy:
    @given(st.lists(FRAMES, max_size=10), st.binary(max_size=20), st.integers(1, 64), st.booleans())
    def test_any_frames_end_cleanly(self, frames: list[Control | Data], noise: bytes, step: int, begun: bool) -> None:
        client = Script(framed([*(REMOTE if begun else []), *frames]) + noise, step)
        lived(over_spdy(SpdySession(client), work, StdStreams(True, stdout=True, stderr=True, terminal=False)))
