"""Orders arrive as they were sent, however long they are, and with what came with them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from sandpool.node.launcher.messages import (
    MAX_MESSAGE_BYTES,
    ReceivedRequest,
    answer,
    error_reply,
    receive,
    receive_request,
    send_request,
)

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    both = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    yield both
    for each in both:
        each.close()


def received(connection: socket.socket) -> ReceivedRequest:
    request = receive_request(connection)
    assert request is not None
    return request


@pytest.mark.parametrize("size", [1, MAX_MESSAGE_BYTES - 3, MAX_MESSAGE_BYTES - 2, MAX_MESSAGE_BYTES, 1 << 20])
def test_request_of_any_length_is_received(pair: Pair, size: int) -> None:
    opened = os.open("/dev/null", os.O_RDONLY)
    send_request(pair[0], 5, b"{" * size, [opened, opened])
    request = received(pair[1])
    assert (request.number, request.data, len(request.descriptors)) == (5, b"{" * size, 2)
    for descriptor in (opened, *request.descriptors):
        os.close(descriptor)


def test_received_descriptors_are_not_inheritable(pair: Pair) -> None:
    send_request(pair[0], 1, b"{}", [0, 1])
    request = received(pair[1])
    assert [os.get_inheritable(descriptor) for descriptor in request.descriptors] == [False, False]
    for descriptor in request.descriptors:
        os.close(descriptor)


def test_closed_peer_sends_nothing(pair: Pair) -> None:
    pair[0].close()
    assert receive_request(pair[1]) is None
    answer(pair[1], {"request": 1})  # without a receiver


def test_peer_that_closed_with_unread_data_sends_nothing(pair: Pair) -> None:
    answer(pair[1], {"request": 1})
    pair[0].close()
    assert receive_request(pair[1]) is None


def test_reply_carries_its_descriptor(pair: Pair) -> None:
    answer(pair[1], {"request": 1, "pid": 2}, 0)
    message, (descriptor,) = receive(pair[0], 1)
    assert message == b'{"request": 1, "pid": 2}'
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (FileNotFoundError(2, "No such file", "/here"), "/here: No such file"),
        (BlockingIOError(11, "Try again"), "Try again"),
        (ProcessLookupError("gone"), "gone"),
        (ValueError(), ""),
        (ValueError("x" * 1000), "x" * 500),
    ],
)
def test_error_reply_has_text_and_kind(error: Exception, text: str) -> None:
    assert error_reply(error) == {"error": text, "kind": type(error).__name__}
