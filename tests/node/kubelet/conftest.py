"""A kubelet API with a pod that echoes its input."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandpool.kube.client import Client
from sandpool.kube.pod_access import StreamClient
from tests.support.fake_kubelet import KubeletRig, kubelet_rig


async def repeat(command: tuple[str, ...], client: StreamClient) -> int:
    await client.write(" ".join(command).encode())
    while data := await client.receive():
        await client.write(data)
    return 3


class Rig:
    def __init__(self, kubelet: KubeletRig, client: Client) -> None:
        self.kubelet = kubelet
        self.client = client  # of an administrator


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with kubelet_rig(tmp_path, repeat) as (kubelet, server):
        kubelet.pod_access.log = [b"one\n", b"two\n"]
        yield Rig(kubelet, server.client())
