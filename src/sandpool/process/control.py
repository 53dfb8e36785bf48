"""Messages of a parent to its child, with descriptors, over a socket pair.

A message is JSON with the name of an operation. The child answers with ``READY``, once, and with nothing else: what a
child reports besides goes through descriptors that the parent passes for the purpose, where it can be bounded.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from sandpool.node.descriptors import readable, writable
from sandpool.node.launcher.messages import receive_request, send_request

READY: Final = b"ready"
MAX_DESCRIPTORS: Final = 4


class Message(NamedTuple):
    """``operation`` with its fields. The receiver owns the descriptors."""

    operation: str
    fields: dict[str, Any]
    descriptors: list[int]


class ControlSender:
    """The parent's end. Messages arrive in the order in which they are sent."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._turn = asyncio.Lock()
        self._number = 0
        connection.setblocking(False)

    async def send(self, operation: str, descriptors: Sequence[int] = (), **fields: Any) -> None:
        """Send a message. The caller keeps its descriptors. Raises ``ConnectionError`` if the child is gone."""
        if len(descriptors) > MAX_DESCRIPTORS:
            raise ValueError(f"a message has at most {MAX_DESCRIPTORS} descriptors")
        data = json.dumps({**fields, "operation": operation}).encode()
        async with self._turn:
            self._number += 1
            while True:
                if self.connection.fileno() < 0:
                    raise ConnectionResetError("the process has ended")
                try:
                    send_request(self.connection, self._number, data, descriptors)
                except BlockingIOError:
                    await writable(self.connection.fileno())
                else:
                    return

    def close(self) -> None:
        self.connection.close()


class ControlReceiver:
    """The child's end."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def receive_blocking(self) -> Message | None:
        """Wait for a message without an event loop; None if the parent is gone."""
        self.connection.setblocking(True)
        return self._received()

    async def receive(self) -> Message | None:
        """Wait for a message; None if the parent is gone."""
        self.connection.setblocking(False)
        while True:
            try:
                return self._received()
            except BlockingIOError:
                await readable(self.connection.fileno())

    def ready(self) -> None:
        self.connection.send(READY)

    def _received(self) -> Message | None:
        received = receive_request(self.connection)
        if received is None:
            return None
        fields = json.loads(received.data)
        return Message(fields.pop("operation"), fields, received.descriptors)


def sockets(descriptors: Sequence[int]) -> list[socket.socket]:
    """Turn received descriptors into sockets, which own them."""
    made = [socket.socket(fileno=descriptor) for descriptor in descriptors]
    for sock in made:
        sock.setblocking(False)
    return made
