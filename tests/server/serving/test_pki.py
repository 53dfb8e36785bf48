"""The server's certificates: made once, renewed when needed, believed by real TLS."""

from __future__ import annotations

import asyncio
import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from sandpool.server.auth.certificates import PeerCertificate, peer_certificate
from sandpool.server.serving.pki import Authority


class Calendar:
    def __init__(self) -> None:
        self.today = datetime.now(UTC)

    def now(self) -> datetime:
        return self.today

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError


def load(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def client_context(authority: Authority, *, certificate: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=authority.ca_pem)
    if certificate:
        identity = authority.admin()
        context.load_cert_chain(identity.certificate, identity.key)
    return context


async def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> PeerCertificate | None:
    """Connect, and return the user that the server saw."""
    seen: asyncio.Future[PeerCertificate | None] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.set_result(peer_certificate(writer.get_extra_info("ssl_object")))
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=server)
    port = listener.sockets[0].getsockname()[1]
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname=name)
        await reader.read()
        writer.close()
        if not seen.done():  # under TLS 1.3 a client learns that it was refused only now
            raise ConnectionError("the server closed the connection")
        return seen.result()
    finally:
        listener.close()


def test_key_files_are_private(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pki", Calendar())
    authority.server()
    authority.admin()
    assert stat.S_IMODE((tmp_path / "pki").stat().st_mode) == 0o700
    files = sorted((tmp_path / "pki").iterdir())
    assert [file.name for file in files] == ["admin.crt", "admin.key", "ca.crt", "ca.key", "server.crt", "server.key"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_certificates_are_created_once(tmp_path: Path) -> None:
    calendar = Calendar()
    first = Authority(tmp_path, calendar)
    server = first.server(["example.org"]).certificate.read_bytes()
    admin = first.admin().certificate.read_bytes()
    again = Authority(tmp_path, calendar)
    assert again.ca_pem == first.ca_pem
    assert again.server(["example.org"]).certificate.read_bytes() == server
    assert again.server().certificate.read_bytes() == server, "a name less is no reason"
    assert again.admin().certificate.read_bytes() == admin


def test_another_name_creates_a_new_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path, Calendar())
    before = load(authority.server().certificate)
    after = load(authority.server(["10.0.0.1", "example.org"]).certificate)
    assert before.serial_number != after.serial_number
    names = after.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert set(names.get_values_for_type(x509.DNSName)) == {
        "localhost",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
        "example.org",
    }
    assert set(map(str, names.get_values_for_type(x509.IPAddress))) == {"127.0.0.1", "::1", "10.0.0.1"}


def test_certificates_are_renewed_before_they_expire(tmp_path: Path) -> None:
    calendar = Calendar()
    authority = Authority(tmp_path, calendar)
    server, admin = load(authority.server().certificate), load(authority.admin().certificate)
    calendar.today += timedelta(days=334)
    assert load(authority.server().certificate) == server
    calendar.today += timedelta(days=2)
    assert load(authority.server().certificate) != server
    assert load(authority.admin().certificate) != admin


def test_kubelet_certificates_are_for_server_and_client(tmp_path: Path) -> None:
    authority = Authority(tmp_path, Calendar())
    shown = load(authority.kubelet("here", ["10.0.0.1"]).certificate)
    (name,) = shown.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    assert name.value == "system:node:here"
    names = shown.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"], "it is not the API server"
    client = load(authority.kubelet_client().certificate)
    (name,) = client.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    (group,) = client.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    assert (name.value, group.value) == ("kube-apiserver-kubelet-client", "system:masters")


def test_missing_or_mismatched_key_creates_a_new_pair(tmp_path: Path) -> None:
    authority = Authority(tmp_path, Calendar())
    before = load(authority.server().certificate)
    (tmp_path / "server.key").unlink()
    second = load(authority.server().certificate)
    assert second != before
    (tmp_path / "server.key").write_bytes((tmp_path / "ca.key").read_bytes())
    assert load(authority.server().certificate) != second


def test_new_authority_replaces_its_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path, Calendar())
    before = load(authority.server().certificate)
    (tmp_path / "ca.key").unlink()
    other = Authority(tmp_path, Calendar())
    assert other.ca_pem != authority.ca_pem
    assert load(other.server().certificate).issuer != before.issuer


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "kubernetes.default.svc", "example.org"])
async def test_clients_trust_the_server(tmp_path: Path, name: str) -> None:
    authority = Authority(tmp_path, Calendar())
    assert await handshake(authority.tls(["example.org"]), client_context(authority), name) is None


async def test_other_names_are_not_trusted(tmp_path: Path) -> None:
    authority = Authority(tmp_path, Calendar())
    with pytest.raises(ssl.SSLCertVerificationError):
        await handshake(authority.tls(), client_context(authority), "example.com")


async def test_admin_certificate_names_the_admin(tmp_path: Path) -> None:
    authority = Authority(tmp_path, Calendar())
    seen = await handshake(authority.tls(), client_context(authority, certificate=True), "localhost")
    assert seen is not None
    assert seen.user.name == "sandpool-admin"
    assert seen.user.groups == ("system:masters", "system:authenticated")
    assert seen.user.extra["authentication.kubernetes.io/credential-id"][0].startswith("X509SHA256=")
    subject = load(authority.admin().certificate).subject
    assert subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == "sandpool-admin"


async def test_foreign_certificate_is_rejected(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path / "a", Calendar()), Authority(tmp_path / "b", Calendar())
    context = client_context(ours)
    identity = theirs.admin()
    context.load_cert_chain(identity.certificate, identity.key)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await handshake(ours.tls(), context, "localhost")


async def test_server_certificate_is_no_client_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path, Calendar())
    context = client_context(authority)
    identity = authority.server()
    context.load_cert_chain(identity.certificate, identity.key)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await handshake(authority.tls(), context, "localhost")


def test_old_tls_versions_are_rejected(tmp_path: Path) -> None:
    context = Authority(tmp_path, Calendar()).tls()
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.verify_mode == ssl.CERT_OPTIONAL


@pytest.mark.parametrize("name", ["ca.crt", "ca.key"])
def test_broken_file_of_the_authority_is_named_with_what_to_do(tmp_path: Path, name: str) -> None:
    Authority(tmp_path, Calendar())
    (tmp_path / name).write_text("no PEM")
    with pytest.raises(ValueError, match=f"{tmp_path}/{name} is damaged: restore it from a backup, or remove "):
        Authority(tmp_path, Calendar())
    assert (tmp_path / name).read_text() == "no PEM", "it may be all that is left of the key"


@pytest.mark.parametrize("name", ["admin.crt", "admin.key"])
def test_broken_certificate_of_a_client_is_issued_again(tmp_path: Path, name: str) -> None:
    Authority(tmp_path, Calendar()).admin()
    (tmp_path / name).write_text("no PEM")
    authority = Authority(tmp_path, Calendar())
    client_context(authority, certificate=True)
    assert load(authority.admin().certificate).issuer == load(tmp_path / "ca.crt").subject
