from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any, Final, cast

import orjson
import pytest

from sandpool.e2b.rpc import END, Code, Envelope, EnvelopeReader, Message, RpcError, end_of_stream, envelope
from sandpool.e2b.rpc_http import _only_message


def test_envelopes_are_read_whatever_the_split() -> None:
    stream = envelope(b"one") + envelope(b"") + envelope(b"end", END)
    wanted = [Envelope(0, b"one"), Envelope(0, b""), Envelope(END, b"end")]
    for size in (1, 2, 5, 7, len(stream)):
        reader = EnvelopeReader()
        found = [each for at in range(0, len(stream), size) for each in reader.feed(stream[at : at + size])]
        reader.finish()
        assert found == wanted


def test_large_and_compressed_envelopes_are_refused_before_they_are_held() -> None:
    with pytest.raises(RpcError, match="larger") as caught:
        EnvelopeReader(10).feed(b"\0" + (11).to_bytes(4, "big"))
    assert caught.value.code == Code.RESOURCE_EXHAUSTED
    with pytest.raises(RpcError, match="compressed"):
        EnvelopeReader().feed(b"\1\0\0\0\0")


def test_stream_that_ends_within_an_envelope_is_refused() -> None:
    reader = EnvelopeReader()
    assert reader.feed(envelope(b"abc")[:-1]) == []
    with pytest.raises(RpcError, match="within a message"):
        reader.finish()


def test_end_of_a_stream_carries_the_error() -> None:
    assert end_of_stream() == b"\x02\0\0\0\x02{}"
    error = orjson.loads(end_of_stream(RpcError(Code.NOT_FOUND, "gone"))[5:])
    assert error == {"error": {"code": "not_found", "message": "gone"}}


def test_fields_have_either_name_and_defaults() -> None:
    message = Message.decode(
        b'{"watcher_id": "a", "includeEntry": true, "pid": "7", "envs": {"A": "b"}, "args": ["x"], "cwd": null}'
    )
    assert (message.text("watcherId"), message.flag("includeEntry"), message.number("pid")) == ("a", True, 7)
    assert (message.text_map("envs"), message.texts("args")) == ({"A": "b"}, ("x",))
    assert (message.text("cwd"), message.has("cwd"), message.number("none"), message.data("none")) == (
        "",
        False,
        0,
        b"",
    )
    assert message.message("none").texts("args") == ()
    assert Message.decode(b"").text("path") == ""


@pytest.mark.parametrize("spelled", [base64.b64encode(b"\xfb\xff\xfe!"), base64.urlsafe_b64encode(b"\xfb\xff\xfe!")])
def test_bytes_are_base64_of_either_alphabet_with_or_without_padding(spelled: bytes) -> None:
    for text in (spelled.decode(), spelled.decode().rstrip("=")):
        assert Message({"data": text}).data("data") == b"\xfb\xff\xfe!"


#: By the reader of a field: what it refuses.
_REFUSED: Final[dict[str, list[Any]]] = {
    "text": [1, [], "nul\0"],
    "flag": [1, "true"],
    "number": [-1, 1 << 32, "-1", "٣", 1.5, True, "12345678901"],
    "data": ["*", 7, "a"],
    "message": [[], "x"],
    "texts": ["x", [1], ["\0"]],
    "text_map": [[], {"a": 1}, {"": "x"}, {"a=b": "x"}, {"a": "\0"}],
}
WRONG: Final = [(reader, value) for reader, values in _REFUSED.items() for value in values]


@pytest.mark.parametrize(
    ("reader", "value"),
    WRONG,
)
def test_fields_of_the_wrong_type_are_refused(reader: str, value: Any) -> None:
    with pytest.raises(RpcError) as caught:
        getattr(Message({"field": value}), reader)("field")
    assert caught.value.code == Code.INVALID_ARGUMENT


@pytest.mark.parametrize("data", [b"{", b"[]", b"1", b"\xff"])
def test_only_objects_are_messages(data: bytes) -> None:
    with pytest.raises(RpcError):
        Message.decode(data)


async def test_request_with_more_than_one_message_is_refused_at_the_second() -> None:
    class Endless:
        """The body of a request. Its messages are small, and objects in memory are not."""

        @property
        def content(self) -> Endless:
            return self

        async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
            yield bytes(5 * 1000)
            raise AssertionError("it is read on")

    with pytest.raises(RpcError, match="exactly one message"):
        await _only_message(cast(Any, Endless()))
