"""The serving certificate renews itself."""

from __future__ import annotations

from pathlib import Path

from cryptography import x509

from sandpool.server.aggregated.certificates import CHECK_SECONDS, ServingCertificate
from sandpool.testing.clock import ManualClock


async def test_certificate_is_renewed_before_it_expires(tmp_path: Path) -> None:
    clock = ManualClock()
    certificate = ServingCertificate(tmp_path, ["sandpool.system.svc"], clock)
    ca = certificate.ca
    assert not certificate.renewed()
    await clock.advance(300 * 86400)
    assert not certificate.renewed()
    await clock.advance(36 * 86400)
    assert certificate.renewed()
    assert not certificate.renewed()
    assert certificate.ca == ca, "what kube-apiserver trusts has not changed"
    assert CHECK_SECONDS < 86400


async def test_certificate_is_kept_over_a_restart(tmp_path: Path) -> None:
    clock = ManualClock()
    ServingCertificate(tmp_path, ["sandpool.system.svc"], clock)
    before = (tmp_path / "server.crt").read_bytes()
    ServingCertificate(tmp_path, ["sandpool.system.svc"], clock)
    assert (tmp_path / "server.crt").read_bytes() == before
    ServingCertificate(tmp_path, ["another.system.svc"], clock)
    assert (tmp_path / "server.crt").read_bytes() != before


async def test_ca_is_replaced_without_a_moment_in_which_clients_distrust_the_server(tmp_path: Path) -> None:
    """For ten years and a half, with a restart at every check: what serves was issued by a CA that clients trust, also
    by those that have the bundle of the check before."""
    clock = ManualClock()
    certificate = ServingCertificate(tmp_path, ["name"], clock)
    bundles, used = [certificate.ca], set[str]()

    def check() -> None:
        serving = x509.load_pem_x509_certificate(certificate._read())
        for bundle in bundles[-2:]:
            found = x509.load_pem_x509_certificates(bundle.encode())
            assert any(ca.subject == serving.issuer for ca in found)
            assert all(ca.not_valid_after_utc > clock.now() for ca in found)
        used.add(serving.issuer.rfc4514_string())

    for day in range(int(10.5 * 365)):
        await clock.advance(24 * 3600)
        # The bundle is not published for a week, because kube-apiserver is away.
        certificate.replace_ca(published=day % 14 < 7)
        bundles.append(certificate.ca)
        if day % 100 == 0 or len(x509.load_pem_x509_certificates(certificate.ca.encode())) > 1:
            check()
            certificate = ServingCertificate(tmp_path, ["name"], clock)
    check()
    assert len(used) == 2
    assert len(x509.load_pem_x509_certificates(certificate.ca.encode())) == 1
