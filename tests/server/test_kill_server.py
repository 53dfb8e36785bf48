"""The whole server, killed with SIGKILL under load over HTTPS: whatever a client was told is still true afterwards."""

from __future__ import annotations

import asyncio
import random

import pytest

from sandpool.api.kinds import CONFIG_MAP
from sandpool.bench.server_process import ServerProcess
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import ApiError
from sandpool.kube.http import HttpTransport
from sandpool.kube.kubeconfig import load

WRITERS = 16


class AcknowledgedWrites:
    """The acknowledged writes: the last number of each object, and the total."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.writes = 0
        self._wanted = 0
        self._reached = asyncio.Event()

    def acknowledge(self, name: str, number: int) -> None:
        self.numbers[name] = number
        self.writes += 1
        if self.writes >= self._wanted:
            self._reached.set()

    async def grow(self, by: int) -> None:
        self._wanted = self.writes + by
        self._reached.clear()
        await self._reached.wait()


async def write(client: Client, acknowledged: AcknowledgedWrites, name: str) -> None:
    """Count up in an object of one's own, until the server is gone."""
    number = acknowledged.numbers.get(name, 0)
    while True:
        # After a crash the stored number may be one ahead: that write was made but its answer was lost.
        number += 1
        data = {"data": {"number": str(number), "padding": "x" * (number * 41 % 2000)}}
        try:
            if name in acknowledged.numbers:
                await client.patch(CONFIG_MAP, name, MergePatch(data), "default")
            else:
                await client.create(CONFIG_MAP, {"metadata": {"name": name}, **data}, "default")
        except (ApiError, ConnectionError, TimeoutError):
            return
        acknowledged.acknowledge(name, number)


async def stored_numbers(client: Client) -> dict[str, int]:
    listed = await client.list(CONFIG_MAP, "default")
    return {
        item["metadata"]["name"]: int(item["data"]["number"]) for item in listed["items"] if "number" in item["data"]
    }


async def kill_repeatedly(times: int, seed: int) -> None:
    chance = random.Random(seed)
    acknowledged = AcknowledgedWrites()
    async with ServerProcess() as server:
        for _ in range(times):
            client = Client(HttpTransport(load(server.kubeconfig)))
            writers = [asyncio.create_task(write(client, acknowledged, f"n{i}")) for i in range(WRITERS)]
            await acknowledged.grow(chance.randrange(1, 300))
            server.process.kill()
            await asyncio.gather(*writers)
            await client.close()
            await asyncio.to_thread(server.restart)
            client = Client(HttpTransport(load(server.kubeconfig)))
            stored = await stored_numbers(client)
            await client.close()
            for name, number in acknowledged.numbers.items():
                assert stored[name] in (number, number + 1), name
            # An object may have been created without its writer hearing of it.
            acknowledged.numbers |= stored
    assert acknowledged.writes


@pytest.mark.durability
async def test_acknowledged_writes_over_https_survive_sigkill() -> None:
    await kill_repeatedly(times=8, seed=1)


@pytest.mark.long
@pytest.mark.durability
async def test_acknowledged_writes_over_https_survive_hundreds_of_sigkills() -> None:
    await kill_repeatedly(times=200, seed=2)
