"""The serving certificate behind the aggregation layer: issued by an own CA, and renewed while the server runs."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from sandpool.engine.clock import Clock
from sandpool.server.serving.pki import Authority, server_tls

#: Seconds between two looks at the expiry. A certificate is renewed 30 days before it.
CHECK_SECONDS: Final = 12 * 3600.0


class ServingCertificate:
    """The certificate for these names, in a directory with its CA."""

    def __init__(self, directory: Path, names: Sequence[str], clock: Clock) -> None:
        self._authority = Authority(directory, clock)
        self._names = tuple(names)
        self._used = self._read()

    @property
    def ca(self) -> str:
        """The CA that clients must trust, as PEM."""
        return self._authority.ca_pem

    def tls(self, client_ca: str) -> ssl.SSLContext:
        """TLS with the present certificate, for clients with certificates of ``client_ca``."""
        return server_tls(self._authority.server(self._names), client_ca)

    def renewed(self) -> bool:
        """Issue the certificate again if it is about to expire. True if it differs from the one of the last call."""
        before, self._used = self._used, self._read()
        return self._used != before

    def _read(self) -> bytes:
        return self._authority.server(self._names).certificate.read_bytes()
