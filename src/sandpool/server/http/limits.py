"""Limits on what a client may use before the server refuses it."""

from __future__ import annotations

from dataclasses import dataclass

from sandpool.server.store.store import MAX_OBJECT

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Sizes in bytes, times in seconds. The defaults suit a server on one machine with a few thousand clients."""

    body: int = MAX_OBJECT  # kube-apiserver's limit; part of the 413 message
    head: int = 64 * KIB
    connections: int = 8192
    # A client must send its whole head, and after that its whole body, within these.
    head_seconds: float = 30.0
    body_seconds: float = 60.0
    # Go clients close idle connections after 90 s. The server must wait longer: if it closes first, it races with the
    # client's next request.
    idle_seconds: float = 120.0
    # A client that does not read its response occupies memory.
    write_seconds: float = 60.0
    # After a refusal the rest of the request is read and dropped for this long. Closing a socket with unread input
    # resets it, and the client would see the reset instead of the response.
    linger_seconds: float = 5.0
    tls_handshake_seconds: float = 10.0
    # Unsent bytes per connection above which its stream or its next request waits.
    write_buffer: int = 1 * MIB
    # Responses above this size are compressed if the client accepts gzip; kube-apiserver's threshold.
    gzip_above: int = 128 * KIB
