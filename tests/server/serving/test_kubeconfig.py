"""The kubeconfig the server writes: usable, private, and never over a foreign file."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import yaml

from sandpool.server.serving.kubeconfig import ForeignFile, write_kubeconfig


def test_kubeconfig_has_server_ca_and_token(tmp_path: Path) -> None:
    path = tmp_path / "new" / "config"
    write_kubeconfig(path, "https://127.0.0.1:1", "CA", "secret")
    document = yaml.safe_load(path.read_text())
    assert document["clusters"][0]["cluster"] == {
        "server": "https://127.0.0.1:1",
        "certificate-authority-data": "Q0E=",
    }
    assert document["users"][0]["user"] == {"token": "secret"}
    assert document["current-context"] == document["contexts"][0]["name"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_own_kubeconfig_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "config"
    write_kubeconfig(path, "https://127.0.0.1:1", "CA", "old")
    write_kubeconfig(path, "https://127.0.0.1:2", "CA", "new")
    assert "127.0.0.1:2" in path.read_text()
    assert [file.name for file in tmp_path.iterdir()] == ["config"]


@pytest.mark.parametrize("content", ["apiVersion: v1\nkind: Config\n", ""])
def test_foreign_kubeconfig_is_kept(tmp_path: Path, content: str) -> None:
    path = tmp_path / "config"
    path.write_text(content)
    with pytest.raises(ForeignFile, match="choose another file"):
        write_kubeconfig(path, "https://127.0.0.1:1", "CA", "secret")
    assert path.read_text() == content
