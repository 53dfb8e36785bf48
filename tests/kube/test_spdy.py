from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.kube import spdy
from sandpool.kube.spdy import DICTIONARY, Control, Data, Decoder, Encoder, SpdyError

IDS = st.integers(1, 2**31 - 1)
HEADERS = st.dictionaries(st.sampled_from(["streamtype", "port", "requestid"]), st.text(st.characters(codec="latin-1")))
FRAMES = st.one_of(
    st.builds(Data, IDS, st.binary(max_size=100), st.booleans()),
    st.builds(
        lambda number, fin, headers: Control(spdy.SYN_STREAM, number, fin, _ascii(headers)), IDS, st.booleans(), HEADERS
    ),
    st.builds(lambda number, headers: Control(spdy.SYN_REPLY, number, headers=_ascii(headers)), IDS, HEADERS),
    st.builds(lambda stream: Control(spdy.RST_STREAM, stream, number=spdy.CANCEL), IDS),
    st.builds(lambda number: Control(spdy.PING, number=number), st.integers(0, 2**32 - 1)),
)


def _ascii(headers: dict[str, str]) -> dict[str, str]:
    return {name: "".join(letter for letter in value if letter.isascii()) for name, value in headers.items()}


def encode(encoder: Encoder, frame: Control | Data) -> bytes:
    return encoder.data(frame) if isinstance(frame, Data) else encoder.control(frame)


def test_dictionary_is_that_of_the_specification() -> None:
    assert (len(DICTIONARY), zlib.adler32(DICTIONARY)) == (1423, 0xE3C6A7C2)


@given(st.lists(FRAMES, max_size=8), st.integers(1, 50))
def test_frames_arrive_whatever_the_chunking(frames: list[Control | Data], step: int) -> None:
    encoder, decoder = Encoder(), Decoder()
    wire = b"".join(encode(encoder, frame) for frame in frames)
    arrived = [frame for start in range(0, len(wire), step) for frame in decoder.feed(wire[start : start + step])]
    assert arrived == frames


def test_unsupported_frame_types_are_skipped() -> None:
    encoder = Encoder()
    wire = encoder.control(Control(spdy.SETTINGS)) + encoder.data(Data(1, b"x"))
    assert list(Decoder().feed(wire)) == [Data(1, b"x")]


@pytest.mark.parametrize(
    "wire",
    [
        b"\x80\x02\x00\x01\x00\x00\x00\x00",  # SPDY/2
        b"\x00\x00\x00\x01\x00\xff\xff\xff",  # 16 MiB
        b"\x80\x03\x00\x01\x00\x00\x00\x04\x00\x00\x00\x01",  # a stream without headers
        b"\x80\x03\x00\x01\x00\x00\x00\x0e\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00nope",  # not compressed
    ],
)
def test_malformed_frames_are_rejected(wire: bytes) -> None:
    with pytest.raises(SpdyError):
        list(Decoder().feed(wire))


def test_oversized_headers_are_rejected() -> None:
    encoder = Encoder()
    wire = encoder.control(Control(spdy.SYN_STREAM, 1, headers={"a": "x" * 200_000}))
    with pytest.raises(SpdyError, match="too long"):
        list(Decoder().feed(wire))


@given(st.binary(max_size=300))
def test_any_bytes_are_decoded_or_rejected(data: bytes) -> None:
    try:
        for frame in Decoder().feed(data):
            assert isinstance(frame, Control | Data)
    except SpdyError:
        pass
