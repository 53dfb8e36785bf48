from __future__ import annotations

import stat
from pathlib import Path

import pytest
import yaml

from sandpool.api.kinds import CONFIG_MAP, NAMESPACE
from sandpool.kube.client import Client
from sandpool.kube.http import HttpTransport
from sandpool.kube.kubeconfig import load
from sandpool.server.serving.daemon import Daemon, ServerOptions
from sandpool.server.store.journal import StoreInUse
from sandpool.testing.objects import new


async def test_written_kubeconfig_authenticates_an_administrator(tmp_path: Path) -> None:
    audit = tmp_path / "audit.log"
    daemon = Daemon(ServerOptions(tmp_path / "data", port=0, audit_log=audit))
    await daemon.start()
    transport = HttpTransport(load(daemon.kubeconfig))
    client = Client(transport)
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), "default")
    assert stat.S_IMODE(daemon.kubeconfig.stat().st_mode) == 0o600
    await transport.close()
    await daemon.stop()
    assert "configmaps" in audit.read_text()


async def test_restart_keeps_tokens_certificates_and_objects(tmp_path: Path) -> None:
    settings = ServerOptions(tmp_path / "data", port=0)
    kubeconfigs = []
    for _ in range(2):
        daemon = Daemon(settings)
        await daemon.start()
        kubeconfigs.append(yaml.safe_load(daemon.kubeconfig.read_text()))
        await daemon.stop()
    first, second = kubeconfigs
    assert first["users"] == second["users"]
    authority = "certificate-authority-data"
    assert first["clusters"][0]["cluster"][authority] == second["clusters"][0]["cluster"][authority]


@pytest.mark.parametrize(
    "host, address", [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("localhost", "localhost")]
)
async def test_printed_address_can_be_reached(tmp_path: Path, host: str, address: str) -> None:
    daemon = Daemon(ServerOptions(tmp_path / "data", host=host, port=0))
    await daemon.start()
    assert daemon.url == f"https://{address}:{daemon.http.port}"
    transport = HttpTransport(load(daemon.kubeconfig))
    await Client(transport).get(NAMESPACE, "default")
    await transport.close()
    await daemon.stop()


async def test_failed_start_leaves_nothing_open(tmp_path: Path) -> None:
    first = Daemon(ServerOptions(tmp_path / "data", port=0))
    await first.start()
    with pytest.raises(StoreInUse):
        await Daemon(ServerOptions(tmp_path / "data", port=0, audit_log=tmp_path / "audit.log")).start()
    other = tmp_path / "other"
    taken = Daemon(ServerOptions(other, port=first.http.port, audit_log=tmp_path / "audit.log"))
    with pytest.raises(OSError):
        await taken.start()
    await first.stop()
    again = Daemon(ServerOptions(other, port=0, kubeconfig=tmp_path))
    with pytest.raises(OSError):
        await again.start()
    last = Daemon(ServerOptions(other, port=0))
    await last.start()
    await last.stop()
