"""How much of everything one client may use before the front refuses it."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Sizes in bytes, times in seconds. The defaults suit a server on one machine with a few thousand clients."""

    body: int = 3 * MIB  # kube-apiserver's limit; part of the 413 message
    head: int = 64 * KIB
    connections: int = 8192
    # A client must send its whole head, and after that its whole body, within these.
    head_seconds: float = 30.0
    body_seconds: float = 60.0
    # Go clients give up idle connections after 90 s. Ours must be the longer one: a server that closes first races
    # with the client's next request.
    idle_seconds: float = 120.0
    # A client that does not read what it asked for holds our memory.
    write_seconds: float = 60.0
    # After a refusal the rest of the request is read and thrown away for this long, because closing a socket with
    # unread input resets it, and the client would see the reset instead of the answer.
    linger_seconds: float = 5.0
    tls_handshake_seconds: float = 10.0
    # Unsent output per connection above which its stream or its next request waits.
    write_buffer: int = 1 * MIB
    # Answers longer than this are compressed if the client can read it; kube-apiserver's threshold.
    gzip_above: int = 128 * KIB
