"""The control plane of tests: it starts, survives the loss of its parts, and leaves nothing behind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandpool.api.kinds import CONFIG_MAP
from sandpool.kube import kubeconfig
from sandpool.kube.client import Client
from sandpool.kube.errors import Forbidden
from sandpool.kube.http import HttpTransport
from sandpool.testing.objects import new
from tests.support.assets import Assets, MissingAssets
from tests.support.control_plane import ControlPlane, ControlPlaneFailed

pytestmark = pytest.mark.kubernetes


@pytest.fixture(scope="module")
def plane(kubernetes_assets: Assets) -> Iterator[ControlPlane]:
    """A separate control plane, because tests break it; without controllers, to start faster."""
    users = {"alice": ()}
    with ControlPlane(kubernetes_assets, controller_manager=False, fsync=False, users=users) as plane:
        yield plane


async def reach(plane: ControlPlane, path: Path, user: str = "admin") -> Client:
    return Client(HttpTransport(kubeconfig.load(plane.write_kubeconfig(path, user))))


async def test_kubeconfig_reaches_the_control_plane(plane: ControlPlane, tmp_path: Path) -> None:
    client = await reach(plane, tmp_path / "kubeconfig")
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), "default")
    await client.close()
    assert (tmp_path / "kubeconfig").stat().st_mode & 0o777 == 0o600


async def test_users_have_no_permissions(plane: ControlPlane, tmp_path: Path) -> None:
    client = await reach(plane, tmp_path / "kubeconfig", "alice")
    with pytest.raises(Forbidden, match=r'User "alice" cannot list'):
        await client.list(CONFIG_MAP, "default")
    await client.close()


async def test_data_survives_restarts(plane: ControlPlane, tmp_path: Path) -> None:
    client = await reach(plane, tmp_path / "kubeconfig")
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "kept"), "default")
    await client.close()
    plane.restart(plane.etcd, crash=True)
    plane.restart(plane.apiserver, crash=True)
    client = await reach(plane, tmp_path / "kubeconfig")
    assert await client.get(CONFIG_MAP, "kept", "default") == created
    await client.close()


def test_failed_start_shows_the_logs_and_leaves_nothing_running(kubernetes_assets: Assets) -> None:
    plane = ControlPlane(kubernetes_assets, controller_manager=False, apiserver_flags=["--no-such-flag"])
    with pytest.raises(ControlPlaneFailed, match=r"(?s)kube-apiserver ended.*unknown flag: --no-such-flag"):
        plane.start()
    assert not plane.directory.exists()
    assert not plane.etcd.running


def test_missing_binary_is_reported(tmp_path: Path) -> None:
    with pytest.raises(MissingAssets, match=r"no kube-controller-manager in"):
        ControlPlane(Assets(tmp_path))


def test_kubeconfig_has_context_and_server(plane: ControlPlane) -> None:
    config = json.loads(plane.kubeconfig.read_text())
    assert config["current-context"] == "admin"
    assert config["clusters"][0]["cluster"]["server"] == plane.url
