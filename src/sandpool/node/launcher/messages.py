"""How orders and answers are passed between the agent and those who carry them out, with their descriptors.

An order is a message with a number and the order as JSON, or, if that is long, the number alone and a file in memory as
the first descriptor. Answers are JSON: ``{"order", "pid"}`` with a descriptor of the process when it was executed, or
``{"order", "error", "kind"}``; and, once it has ended, ``{"order", "ended": wait status}``.
"""

from __future__ import annotations

import json
import os
import socket
from array import array
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

# In either direction; orders themselves may be longer.
LONGEST: Final = 16384
_MOST_DESCRIPTORS: Final = 5
# Of what went wrong, in characters: so much is written at once, and not in pieces between which others write.
_MOST: Final = 500


class ReceivedRequest(NamedTuple):
    """An order. Closing its descriptors is up to who receives it."""

    number: int
    data: bytes
    descriptors: list[int]


def send_request(connection: socket.socket, number: int, data: bytes, descriptors: Sequence[int]) -> None:
    """Raises BlockingIOError if it has to be tried again."""
    message = b"%d %s" % (number, data)
    if len(message) <= LONGEST:
        socket.send_fds(connection, [message], descriptors)
        return
    memory = memfd(data)
    try:
        socket.send_fds(connection, [b"%d " % number], [memory, *descriptors])
    finally:
        os.close(memory)


def receive_request(connection: socket.socket) -> ReceivedRequest | None:
    """None if there will be no more, because the agent is gone, in whatever way."""
    try:
        message, descriptors = receive(connection, _MOST_DESCRIPTORS)
    except ConnectionResetError:  # it has left answers behind that it had not read
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
    """A message and up to so many descriptors, which nothing that is executed inherits. (``socket.recv_fds`` takes a
    flag for that, and forgets it.)"""
    found = array("i")
    room = socket.CMSG_LEN(most * found.itemsize)
    message, ancillary, _, _ = connection.recvmsg(LONGEST, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(data[: len(data) // found.itemsize * found.itemsize])
    return message, list(found)


def answer(connection: socket.socket, what: dict[str, Any], *descriptors: int) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):  # the next order will not come, and that is the end
        socket.send_fds(connection, [json.dumps(what).encode()], descriptors)


def error_reply(error: BaseException) -> dict[str, str]:
    """What went wrong, as an answer says it."""
    text = " ".join(str(part) for part in error.args if part is not None) if error.args else str(error)
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return {"error": text[:_MOST], "kind": type(error).__name__}


def memfd(content: bytes) -> int:
    """A file that is nowhere else."""
    descriptor = os.memfd_create("sandpool")
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
