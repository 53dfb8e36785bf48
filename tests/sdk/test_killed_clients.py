"""Programs that are killed at any moment leave nothing behind, and one program may hold many sandboxes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from sandpool.api.kinds import SANDBOX, SANDBOX_CLAIM
from sandpool.api.resource import Object
from sandpool.bench.server_process import ServerProcess
from sandpool.kube import kubeconfig
from sandpool.sdk.client import AsyncClient
from sandpool.service.service import Service
from sandpool.testing.waiting import until
from tests.support.playground import Playground, playground

LEASE = 3
# Claims, uses and releases sandboxes without end: in a block, by hand, with a key, and several at once.
_PROGRAM = """
import asyncio, sys
from sandpool import AsyncClient

async def main():
    config, lease, command = sys.argv[1:]
    client = AsyncClient(kubeconfig=config, lease=float(lease))
    print("ready", flush=True)
    number = 0
    while True:
        number += 1
        async with client.sandbox("python") as sandbox:
            if command:
                await sandbox.run(command)
        held = await asyncio.gather(client.sandbox("python"), client.sandbox("python", key=f"{client.id} {number}"))
        await asyncio.sleep(0.05)
        await held[0].release()

asyncio.run(main())
"""


async def fill(service: Service, size: int) -> None:
    document = {
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
        "kind": "SandboxTemplate",
        "metadata": {"name": "python"},
        "spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "example.com/image:1"}]}}},
    }
    await service.templates.create(document)
    await service.pools.create("python", "python", size)
    await service.pools.wait_ready("python", size, 300)


@pytest.fixture(scope="module")
def simulated() -> Iterator[Path]:
    """The kubeconfig of a home whose pods run nothing, with a pool."""

    async def prepare(config: Path) -> None:
        async with Service.connect(kubeconfig.from_files((config,), None)) as service:
            await fill(service, 4)

    options = ("--simulated-nodes", "4", "--max-pods", "400")
    with ServerProcess("up", options=options) as server:
        asyncio.run(prepare(server.kubeconfig))
        yield server.kubeconfig


def kill_clients(config: Path, kills: int, command: str, rng: Random) -> None:
    """Start programs, and kill each at a random moment after it has begun."""
    for _ in range(kills):
        arguments = [sys.executable, "-c", _PROGRAM, str(config), str(LEASE), command]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE) as program:
            assert program.stdout is not None
            assert program.stdout.readline() == b"ready\n"
            threading.Event().wait(rng.uniform(0.0, 0.5))  # the moment is the point of the test
            program.kill()
            assert program.wait() == -9


async def nothing_left(config: Path) -> None:
    """Wait until all claims are gone, and every sandbox belongs to a pool."""

    async def probe() -> bool:
        claims: list[Object] = (await service.client.list(SANDBOX_CLAIM, "default"))["items"]
        sandboxes: list[Object] = (await service.client.list(SANDBOX, "default"))["items"]
        owners = [each["metadata"]["ownerReferences"][0]["kind"] for each in sandboxes]
        return not claims and set(owners) <= {"SandboxWarmPool"}

    async with Service.connect(kubeconfig.from_files((config,), None)) as service:
        await until(probe)


def test_clients_that_are_killed_leave_nothing(simulated: Path) -> None:
    kill_clients(simulated, 4, "", Random(18))
    asyncio.run(nothing_left(simulated))


@pytest.mark.long
def test_one_program_holds_500_sandboxes(simulated: Path) -> None:
    async def main() -> None:
        async with AsyncClient(kubeconfig=simulated) as client:
            async with asyncio.timeout(300):
                held = await asyncio.gather(*(client.sandbox("python", timeout=300) for _ in range(500)))
            assert len({sandbox._sandbox.name for sandbox in held}) == 500
            await client.leases.renew()
            listed = (await client.service.client.list(SANDBOX_CLAIM, "default"))["items"]
            assert len(listed) == 500

    asyncio.run(main())
    asyncio.run(nothing_left(simulated))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Playground]:
    with playground(tmp_path_factory.mktemp("killed")) as running:
        yield running


@pytest.mark.long
@pytest.mark.isolation
def test_200_killed_clients_leave_no_real_sandbox(home: Playground) -> None:
    rng = Random(18)
    threads = [
        threading.Thread(target=kill_clients, args=(home.kubeconfig, 100, "echo hello", Random(rng.random())))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asyncio.run(nothing_left(home.kubeconfig))
