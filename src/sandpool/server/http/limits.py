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
    local_connections: int = 64  # of other processes of this server, which have a descriptor and no address
    # Connections that have not sent a credential: in their TLS handshake, before the first request, or anonymous. When
    # there are more, the oldest one is closed, of the same address or of the address that has the most.
    strangers: int = 1024
    strangers_per_address: int = 512
    # What one authenticated user may occupy (see ``fairness``).
    connections_per_user: int = 4096
    streams_per_user: int = 2048  # watches, exec, attach, port-forward, logs
    requests_per_user: int = 400  # served at once; kube-apiserver's limit on requests in flight
    queued_per_user: int = 2000
    body_bytes_per_user: int = 64 * MIB
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
    write_buffer: int = 64 * KIB
    # What responses that wait for their clients may hold in memory (see ``unread``).
    unread_bytes_per_user: int = 64 * MIB
    unread_bytes: int = 256 * MIB
    unread_superseded_bytes: int = 256 * MIB
    # Responses above this size are compressed if the client accepts gzip; kube-apiserver's threshold.
    gzip_above: int = 128 * KIB
