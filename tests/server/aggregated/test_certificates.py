"""The serving certificate renews itself."""

from __future__ import annotations

from pathlib import Path

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
