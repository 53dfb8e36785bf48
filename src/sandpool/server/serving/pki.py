"""The server's certificates: its own CA, the certificates it issues and the TLS context.

Everything is created on first use and stored in the data directory with mode 0600. A certificate is renewed when it is
about to expire or lacks a name of the server. The CA is valid longer, because clients have copies of it.
"""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sandpool.engine.clock import Clock
from sandpool.server.auth.groups import MASTERS
from sandpool.server.auth.private_files import write_private
from sandpool.server.auth.tokens import ADMIN

# Names of the API server inside a cluster.
CLUSTER_NAMES = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
# The user name of the API server towards kubelets; kubeadm uses the same.
KUBELET_CLIENT = "kube-apiserver-kubelet-client"
_CA_LIFE = timedelta(days=3650)
_LIFE = timedelta(days=365)
_RENEW_BEFORE = timedelta(days=30)
# A new certificate must be valid for a client whose clock is behind.
_SKEW = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Identity:
    """The files of a certificate and its key."""

    certificate: Path
    key: Path


class DamagedFile(Exception):
    """A file that is no certificate or key."""

    def __init__(self, file: Path) -> None:
        super().__init__(f"{file} is damaged")
        self.file = file


class Authority:
    """The certificates in one directory."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            self._ca, self._ca_key = self._load("ca") or self._make_ca()
        except DamagedFile as error:
            raise ValueError(
                f"{error.file} is damaged: restore it from a backup, or remove {directory} to issue all certificates "
                "again; clients then need the new kubeconfig"
            ) from error

    @property
    def ca_pem(self) -> str:
        return _pem(self._ca).decode()

    @property
    def ca_expires(self) -> datetime:
        return self._ca.not_valid_after_utc

    def server(self, names: Iterable[str] = ()) -> Identity:
        """The serving certificate, valid for loopback, the cluster names and these names."""
        return self._serving("server", _name("kube-apiserver"), {*LOOPBACK_NAMES, *CLUSTER_NAMES, *names})

    def kubelet(self, node: str, names: Iterable[str]) -> Identity:
        """The serving certificate of a kubelet."""
        return self._serving("kubelet", _name(f"system:node:{node}", "system:nodes"), {*LOOPBACK_NAMES, *names})

    def admin(self) -> Identity:
        """The client certificate of the administrator."""
        return self.client("admin", ADMIN.name, MASTERS)

    def kubelet_client(self) -> Identity:
        """The client certificate of the server towards kubelets."""
        return self.client("kubelet-client", KUBELET_CLIENT, MASTERS)

    def client(self, name: str, user: str, *groups: str) -> Identity:
        """The client certificate of a user, stored under a name."""
        if self._load_issued(name) is None:
            self._issue(name, _name(user, *groups), ExtendedKeyUsageOID.CLIENT_AUTH)
        return self._identity(name)

    def tls(self, names: Iterable[str] = ()) -> ssl.SSLContext:
        """TLS for the server: client certificates are optional and must be signed by this CA. Our clients resume its
        sessions (``kube.tls``); a resumed session has the client certificate of the first one."""
        context = server_tls(self.server(names), self.ca_pem)
        context.num_tickets = 1
        return context

    # -- issuing and storing ------------------------------------------------------------------------------------------

    def _serving(self, name: str, subject: x509.Name, wanted: set[str]) -> Identity:
        present = self._load_issued(name)
        if present is None or not wanted <= _names(present):
            alternatives = x509.SubjectAlternativeName([_general_name(each) for each in sorted(wanted)])
            self._issue(name, subject, ExtendedKeyUsageOID.SERVER_AUTH, alternatives)
        return self._identity(name)

    def _identity(self, name: str) -> Identity:
        return Identity(self._directory / f"{name}.crt", self._directory / f"{name}.key")

    def _load(self, name: str) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None:
        """Load a certificate and its key; None if one is missing or they do not match. Raises ``DamagedFile``."""
        identity = self._identity(name)
        file = identity.certificate
        try:
            certificate = x509.load_pem_x509_certificate(file.read_bytes())
            file = identity.key
            key = serialization.load_pem_private_key(file.read_bytes(), None)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:  # TypeError: the key is encrypted
            raise DamagedFile(file) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            return None
        return certificate, key

    def _load_issued(self, name: str) -> x509.Certificate | None:
        """Load a certificate that this CA can issue again; None if it has to."""
        try:
            present = self._load(name)
        except DamagedFile:
            return None
        return present[0] if present is not None and self._is_good(present[0]) else None

    def _is_good(self, certificate: x509.Certificate) -> bool:
        now = self._clock.now()
        return certificate.issuer == self._ca.subject and now < certificate.not_valid_after_utc - _RENEW_BEFORE

    def _make_ca(self) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        key = ec.generate_private_key(ec.SECP256R1())
        # The name contains a serial number, which distinguishes this CA from an earlier one.
        subject = _name(f"sandpool-ca-{x509.random_serial_number():x}"[:40])
        builder = (
            _builder(subject, subject, key.public_key(), self._clock.now(), _CA_LIFE)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(sign_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        certificate = builder.sign(key, hashes.SHA256())
        self._write("ca", certificate, key)
        return certificate, key

    def _issue(
        self, name: str, subject: x509.Name, purpose: x509.ObjectIdentifier, *extensions: x509.ExtensionType
    ) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(subject, self._ca.subject, key.public_key(), self._clock.now(), _LIFE)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(sign_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._ca_key.public_key()), critical=False
            )
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        self._write(name, builder.sign(self._ca_key, hashes.SHA256()), key)

    def _write(self, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        # Write the key first: after a crash between the two the pair does not match and is issued again.
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        identity = self._identity(name)
        write_private(identity.key, key.private_bytes(*form))
        write_private(identity.certificate, _pem(certificate))


def server_tls(identity: Identity, client_ca: str) -> ssl.SSLContext:
    """TLS context for a server with ``identity``. Client certificates are optional and must be signed by
    ``client_ca``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(identity.certificate, identity.key)
    context.load_verify_locations(cadata=client_ca)
    context.verify_mode = ssl.CERT_OPTIONAL
    context.set_alpn_protocols(["http/1.1"])
    context.num_tickets = 0  # other Kubernetes clients do not resume sessions, and tickets cost both sides
    return context


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _name(common: str, *organisations: str) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, each) for each in organisations]
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _names(certificate: x509.Certificate) -> set[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return {*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))}


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + life)
    )


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=not sign_certificates,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        encipher_only=False,
        decipher_only=False,
    )
