"""The fenced transport writes only while the lease is held."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from sandpool.api.kinds import CONFIG_MAP, LEASE
from sandpool.engine.leaderelection import LeaderElector, LeaseLost
from sandpool.engine.transports import FencedTransport
from sandpool.kube.client import Client, MergePatch
from sandpool.server.api_server import ApiServer
from sandpool.testing.clock import ManualClock
from sandpool.testing.faulty_transport import FaultyTransport


class Frozen(ManualClock):
    """A clock for a frozen process: time passes and sleepers do not wake."""

    def __init__(self) -> None:
        super().__init__()
        self.lost = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.lost


async def test_frozen_process_writes_nothing_after_its_lease_expired(tmp_path: Path) -> None:
    server, clock = ApiServer(tmp_path), Frozen()
    await server.start()
    wire = FaultyTransport(server.client().transport)
    election = LeaderElector(server.client(), "lease", "default", "me", clock, Random(1))
    client = Client(FencedTransport(wire, lambda: election.held))
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "default"}}

    async def work() -> None:
        await client.create(CONFIG_MAP, config)
        clock.lost = 9.9
        await client.patch(CONFIG_MAP, "a", MergePatch({"data": {"a": "b"}}), "default")
        clock.lost = 10.0
        before = len(wire.requests)
        for write in (
            client.create(CONFIG_MAP, config),
            client.patch(CONFIG_MAP, "a", MergePatch({"data": {}}), "default"),
            client.delete(CONFIG_MAP, "a", "default"),
        ):
            with pytest.raises(LeaseLost, match="did not send"):
                await write
        assert len(wire.requests) == before
        assert (await client.get(CONFIG_MAP, "a", "default"))["data"] == {"a": "b"}
        async for event in client.watch(CONFIG_MAP, "default", send_initial_events=True):
            assert event.object["metadata"]["name"] != "nothing"
            break

    await election.lead(work)
    assert (await server.client().get(LEASE, "lease", "default"))["spec"]["holderIdentity"] == ""
    await client.close()
    await server.stop()
