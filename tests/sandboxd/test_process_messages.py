from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.sandboxd import process_messages as messages


def test_execute_request_is_decoded() -> None:
    config = b"\x0a\x02sh" + b"\x0a\x02-c" + b"\x12\x06\x0a\x01A\x12\x01b" + b"\x12\x03\x0a\x01C" + b"\x1a\x02/x"
    read = messages.execute_request(b"\x0a" + bytes([len(config)]) + config)
    assert read == messages.ProcessConfig(("sh", "-c"), {"A": "b", "C": ""}, "/x")
    assert messages.execute_request(b"") == messages.ProcessConfig((), {}, None)


def test_execute_response_is_encoded() -> None:
    assert messages.execute_response(0, b"", b"") == b""
    assert messages.execute_response(3, b"out", b"e") == b"\x08\x03\x12\x03out\x1a\x01e"
    assert messages.execute_response(-1, b"", b"") == b"\x08" + b"\xff" * 9 + b"\x01"


def test_start_request_is_decoded() -> None:
    assert messages.start_request(b"\x0a\x03\x0a\x01x").size is None
    assert messages.start_request(b"\x12\x04\x08\x50\x10\x18").size == messages.Size(80, 24)
    assert messages.start_request(b"\x12\x00").size == messages.Size(0, 0)


def test_start_events_are_encoded() -> None:
    assert messages.started(1) == b"\x0a\x02\x08\x01"
    assert messages.output(b"x", error=False) == b"\x12\x01x"
    assert messages.output(b"x", error=True) == b"\x1a\x01x"
    assert messages.ended(0) == b"\x22\x00"
    assert messages.ended(300) == b"\x22\x03\x08\xac\x02"


def test_requests_to_a_running_process_are_decoded() -> None:
    assert messages.write_stdin_request(b"\x08\x05\x12\x02hi") == messages.WriteStdinRequest(5, b"hi")
    assert messages.write_stdin_request(b"\x08\x05\x12\x00") == messages.WriteStdinRequest(5, b"")
    assert messages.write_stdin_request(b"\x08\x05\x1a\x00") == messages.WriteStdinRequest(5, None)
    assert messages.signal_request(b"\x08\x05\x10\x0f") == messages.SignalRequest(5, 15)
    assert messages.resize_request(b"\x08\x05\x10\x50\x18\x18") == messages.ResizeRequest(5, messages.Size(80, 24))


def test_unknown_fields_are_skipped() -> None:
    assert messages.signal_request(b"\x08\x05\x7a\x01x\x79" + b"\0" * 8 + b"\x7d" + b"\0" * 4).process == 5


@given(st.binary(max_size=200))
def test_arbitrary_bytes_decode_or_raise_malformed(data: bytes) -> None:
    for read in (
        messages.execute_request,
        messages.start_request,
        messages.write_stdin_request,
        messages.signal_request,
        messages.resize_request,
    ):
        with suppress(messages.Malformed):
            read(data)


@pytest.mark.parametrize("data", [b"\x08", b"\x0a\x05abc", b"\x0b", b"\x08" + b"\xff" * 12, b"\x0a\x02\x0a\x01"])
def test_invalid_message_raises_malformed(data: bytes) -> None:
    with pytest.raises(messages.Malformed):
        messages.execute_request(data)
        messages.signal_request(data)
