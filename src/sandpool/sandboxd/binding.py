"""Late binding: takes the environment variables of the claim that got this sandbox.

A warm sandbox runs before its claim exists, so the claim's variables cannot be in its pod. The controller hands them
over here instead, before it reports the claim as Ready. From then on they are in the environment of this process, and
therefore of every command, session and shell that it starts.

**Who may bind.** Only a peer on the loopback interface of the pod can connect: the node, the kubelet on behalf of a
client that may forward ports of this pod, and processes of the pod itself. A neighbour cannot. Code in the sandbox
could bind its own sandbox before the controller does; it would change nothing but its own environment, and the
controller would be refused and would discard the sandbox.

**Once.** The first claim that binds stays. The same claim may ask again, because an answer may be lost, and is told
that it has bound; the values of its first request stay. Another claim is refused.

**Recall.** The values are in the memory of this process alone, and a node that was restarted asks for them again to
give them to commands that do not go through this process. It proves itself by a key that it chose when it bound.

A message is one line of JSON, and so is its answer. The first line that is no request ends the connection. Otherwise an
HTTP request could carry a bind request in its body, and a web page that a browser in the sandbox shows, or a program
there that fetches any address it is told, could bind the sandbox.
"""

from __future__ import annotations

import os
from _operator import _compare_digest
from _socket import AF_INET, SO_REUSEADDR, SOCK_STREAM, SOL_SOCKET, socket
from _thread import allocate_lock, start_new_thread

from sandpool.sandboxd.encoding import from_json, to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from typing import Any

PORT = 8879
MAX_BYTES = 1 << 20  # of a message
_LOOPBACK = "127.0.0.1"
_BACKLOG = 16
_SECONDS = 5.0  # a peer may be silent within a message
_PAUSE_SECONDS = 0.1
_INVALID = "Invalid"  # no request


class Binding:
    """The claim that this sandbox is bound to. ``environ`` receives its variables."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self.environ = environ
        self._lock = allocate_lock()
        self._claim = ""
        self._values: dict[str, str] = {}
        self._key = ""  # empty: no recall

    def answer(self, line: bytes) -> dict[str, object]:
        try:
            message: Any = from_json(line)
        except ValueError as error:
            return _refusal(_INVALID, f"not JSON: {error}")
        if isinstance(message, dict) and isinstance(message.get("bind"), dict):
            return self._bind(message["bind"])
        if isinstance(message, dict) and isinstance(message.get("recall"), str):
            return self._recall(message["recall"])
        return _refusal(_INVALID, "neither bind nor recall")

    def _bind(self, request: dict[str, Any]) -> dict[str, object]:
        claim, key = request.get("claim"), request.get("key", "")
        values: Any = request.get("values")
        if not isinstance(claim, str) or not claim or not isinstance(key, str) or not _are_variables(values):
            return _refusal(_INVALID, "a bind request has a claim, and values that an environment can have")
        with self._lock:
            if self._claim:
                if claim != self._claim:
                    return _refusal("BoundToAnother", "this sandbox is bound to another claim")
                return {"claim": claim, "first": False}
            self.environ.update(values)
            self._claim, self._values, self._key = claim, values, key
        return {"claim": claim, "first": True}

    def _recall(self, key: str) -> dict[str, object]:
        with self._lock:
            if not self._key or not _compare_digest(key.encode(errors="replace"), self._key.encode(errors="replace")):
                return _refusal("Denied", "this key was not given when the sandbox was bound")
            return {"claim": self._claim, "values": self._values}


def serve(binding: Binding, port: int = PORT) -> socket | None:
    """Listen in a thread, until the returned socket is shut down and closed. None if the port is taken: then no claim
    can bind."""
    listening = socket(AF_INET, SOCK_STREAM)
    try:
        listening.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        listening.bind((_LOOPBACK, port))
        listening.listen(_BACKLOG)
        start_new_thread(_accept, (listening, binding))
    except (OSError, RuntimeError):
        listening.close()
        return None
    return listening


def _accept(listening: socket, binding: Binding) -> None:
    """Serve one peer after the other: there are only the controller and the node."""
    from time import sleep

    while listening.fileno() >= 0:
        try:
            descriptor, _ = listening._accept()  # type: ignore[attr-defined]  # beneath ``accept``
        except OSError:
            sleep(_PAUSE_SECONDS)
            continue
        sock = socket(AF_INET, SOCK_STREAM, 0, descriptor)
        try:
            sock.settimeout(_SECONDS)
            while line := _line(sock):
                answer = binding.answer(line)
                sock.sendall(to_json(answer).encode() + b"\n")
                if answer.get("error") == _INVALID:
                    break  # what follows was not meant for this port
        except OSError:
            pass  # the peer is gone, or silent
        finally:
            sock.close()


def _line(sock: socket) -> bytes:
    """Return the next message; empty if there is none, or if it is too long."""
    pieces, size = [], 0
    while size <= MAX_BYTES:
        piece = sock.recv(1 << 16)
        if not piece:
            return b""
        pieces.append(piece)
        size += len(piece)
        if piece.endswith(b"\n"):
            return b"".join(pieces)
    return b""


def _are_variables(values: object) -> bool:
    return isinstance(values, dict) and all(
        isinstance(value, str) and name and "=" not in name and "\0" not in name + value and _is_encodable(name + value)
        for name, value in values.items()
    )


def _is_encodable(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def _refusal(error: str, message: str) -> dict[str, object]:
    return {"error": error, "message": message}
