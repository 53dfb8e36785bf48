"""The embedded server as a process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandpool.api.kinds import CONFIG_MAP
from sandpool.bench.child_process import ComponentFailed
from sandpool.bench.server_process import ServerProcess
from sandpool.kube import kubeconfig
from sandpool.kube.client import Client
from sandpool.kube.http import HttpTransport
from sandpool.testing.objects import new


async def reach(server: ServerProcess) -> Client:
    return Client(HttpTransport(kubeconfig.load(server.kubeconfig)))


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "killed"])
async def test_data_survives_a_restart(crash: bool) -> None:
    async with ServerProcess() as server:
        client = await reach(server)
        created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "kept"), "default")
        await client.close()
        server.restart(crash=crash)
        client = await reach(server)
        assert await client.get(CONFIG_MAP, "kept", "default") == created
        await client.close()


def test_stopped_server_leaves_neither_process_nor_directory() -> None:
    with ServerProcess(users={"alice": ()}) as server:
        directory, pid = server.directory, server.process.pid
        assert server.tokens.keys() == {"admin", "alice"}
    assert not directory.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_failed_start_shows_the_log() -> None:
    server = ServerProcess(options=["--no-such-option"])
    with pytest.raises(ComponentFailed, match=r"(?s)sandpool server did not say.*No such option"):
        server.start()
    assert not server.directory.exists()


def test_given_data_directory_is_used_and_kept(tmp_path: Path) -> None:
    with ServerProcess(data_dir=tmp_path / "data") as server:
        assert 0 < server.seconds < 30
    assert (tmp_path / "data" / "admin-token").exists()
