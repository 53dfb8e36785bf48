"""Messages between the agent and the launcher or an exec agent, with file descriptors.

A request is a message with a number and JSON, or, if that is long, the number alone and a memfd with the JSON as the
first descriptor. Replies are JSON: ``{"request", "pid"}`` with a pidfd when the process was started, or ``{"request",
"error", "kind"}``; and, once it has ended, ``{"request", "ended": wait status}``.
"""

from __future__ import annotations

import json
import os
import socket
from array import array
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

# Bytes of a message in either direction; the JSON of a request may be longer.
MAX_MESSAGE_BYTES: Final = 16384
_MAX_DESCRIPTORS: Final = 5
# Characters of an error: short enough to be written to a pipe atomically.
_MAX_ERROR: Final = 500


class ReceivedRequest(NamedTuple):
    """A request. The receiver closes its descriptors."""

    number: int
    data: bytes
    descriptors: list[int]


def send_request(connection: socket.socket, number: int, data: bytes, descriptors: Sequence[int]) -> None:
    """Send a request. Raises BlockingIOError if the socket buffer is full."""
    message = b"%d %s" % (number, data)
    if len(message) <= MAX_MESSAGE_BYTES:
        socket.send_fds(connection, [message], descriptors)
        return
    memory = memfd(data)
    try:
        socket.send_fds(connection, [b"%d " % number], [memory, *descriptors])
    finally:
        os.close(memory)


def receive_request(connection: socket.socket) -> ReceivedRequest | None:
    """Receive a request; None if the agent is gone."""
    try:
        message, descriptors = receive(connection, _MAX_DESCRIPTORS)
    except ConnectionResetError:  # the agent had not read all replies
        return None
    if not message:
        return None
    number, _, data = message.partition(b" ")
    if not data:
        memory = descriptors.pop(0)
        with open(memory, "rb") as file:
            data = file.read()
    return ReceivedRequest(int(number), data, descriptors)


def receive(connection: socket.socket, most: int) -> tuple[bytes, list[int]]:
    """Receive a message and at most ``most`` descriptors, which are close-on-exec. (``socket.recv_fds`` has a flag for
    that and ignores it.)"""
    found = array("i")
    room = socket.CMSG_LEN(most * found.itemsize)
    message, ancillary, _, _ = connection.recvmsg(MAX_MESSAGE_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(data[: len(data) // found.itemsize * found.itemsize])
    return message, list(found)


def answer(connection: socket.socket, what: dict[str, Any], *descriptors: int) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):  # the agent is gone; receiving the next request reports it
        socket.send_fds(connection, [json.dumps(what).encode()], descriptors)


def error_reply(error: BaseException) -> dict[str, str]:
    """The fields of a reply that report an error."""
    text = " ".join(str(part) for part in error.args if part is not None) if error.args else str(error)
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return {"error": text[:_MAX_ERROR], "kind": type(error).__name__}


def memfd(content: bytes) -> int:
    """Return a descriptor of an anonymous file in memory with this content."""
    descriptor = os.memfd_create("sandpool")
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
