"""Maps a client certificate, which the TLS handshake has verified, to a user."""

from __future__ import annotations

import hashlib
import ssl
from dataclasses import dataclass

from sandpool.server.auth.groups import authenticated
from sandpool.server.request.messages import User

CREDENTIAL_ID = "authentication.kubernetes.io/credential-id"


@dataclass(frozen=True, slots=True)
class PeerCertificate:
    user: User
    expires: float  # seconds since the epoch; a connection can outlive its certificate


def peer_certificate(tls: ssl.SSLObject) -> PeerCertificate | None:
    """Common name -> user, organisations -> groups. None without a certificate or a common name."""
    fields = tls.getpeercert()
    encoded = tls.getpeercert(binary_form=True)
    if not fields or not encoded:
        return None
    name, groups = "", []
    for relative_name in fields.get("subject", ()):
        for attribute, value in relative_name:  # type: ignore[str-unpack]  # typeshed says str
            if attribute == "commonName":
                name = str(value)
            elif attribute == "organizationName":
                groups.append(str(value))
    if not name:
        return None
    digest = hashlib.sha256(encoded).hexdigest()
    user = User(name, tuple(groups), extra={CREDENTIAL_ID: (f"X509SHA256={digest}",)})
    return PeerCertificate(authenticated(user), ssl.cert_time_to_seconds(str(fields["notAfter"])))
