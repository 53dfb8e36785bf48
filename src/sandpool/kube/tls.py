"""TLS of clients. A new connection resumes the session of the last one to the same server.

Commands, port-forwards and watches have connections of their own. A resumed handshake has no certificates, which saves
half of its CPU time on both sides. Sessions are kept in memory, as long as their context, which has the client
certificate too.
"""

from __future__ import annotations

import os
import ssl
import sys


class ResumingContext(ssl.SSLContext):
    """A context for clients. asyncio makes every connection with ``wrap_bio`` and has no parameter for a session."""

    def __init__(self, protocol: int) -> None:
        self._latest: dict[str | bytes, ssl.SSLObject] = {}  # by the name of the server
        self._sessions: dict[str | bytes, ssl.SSLSession] = {}

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        name = server_hostname or ""
        if session is None:
            session = self._session(name)
        made = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        self._latest[name] = made
        return made

    def _session(self, name: str | bytes) -> ssl.SSLSession | None:
        """The session to resume. The latest connection may have none yet: its session cannot be read during the
        handshake, and since TLS 1.3 a ticket comes after that. Then the session of an earlier one is used again."""
        latest = self._latest.get(name)
        if latest is not None and latest.version() is not None:
            session = latest.session
            if session is not None and session.has_ticket:
                self._sessions[name] = session
        return self._sessions.get(name)


def client_tls(cafile: str | os.PathLike[str] | None = None, cadata: str | bytes | None = None) -> ssl.SSLContext:
    """TLS that trusts a file or data with certificate authorities, by default those of the system, and is otherwise
    that of ``ssl.create_default_context``. Raises ``OSError``, which includes ``SSLError``."""
    context = ResumingContext(ssl.PROTOCOL_TLS_CLIENT)
    if sys.version_info >= (3, 13):
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VERIFY_X509_STRICT
    if cafile is not None or cadata is not None:
        context.load_verify_locations(cafile=cafile, cadata=cadata)
    else:
        context.load_default_certs()
    if keylog := os.environ.get("SSLKEYLOGFILE"):
        context.keylog_filename = keylog
    return context
