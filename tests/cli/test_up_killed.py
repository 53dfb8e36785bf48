"""The whole of ``sandpool up`` killed again and again, while claims come and go on a pool of real sandboxes."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from sandpool.api.conditions import is_ready
from sandpool.api.kinds import POD, SANDBOX_CLAIM, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.api.labels import FREEZE_WHILE_WARM, SANDBOX_NAME_HASH
from sandpool.api.resource import Object
from sandpool.bench.server_process import ServerProcess
from sandpool.kube.client import Client
from sandpool.kube.http import HttpTransport
from sandpool.kube.kubeconfig import load
from sandpool.node.cgroups.hierarchy import Cgroups
from sandpool.node.cgroups.mounts import discover
from sandpool.node.network.netns import NetworkNamespace
from sandpool.testing.objects import new
from sandpool.testing.waiting import until
from tests.support.cgroups import is_populated
from tests.support.real_node import IMAGE

pytestmark = [pytest.mark.isolation, pytest.mark.long]

KILLS = 100
EVERY = 10  # kills after which everything has to come to rest
POOL = 3
CLAIMS = 3
WITHIN = 120.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """In a network namespace without a route out."""
    os.chmod(tmp_path, 0o755)
    host, _ = NetworkNamespace.make(tmp_path / "host", lambda: None)
    options = ("--host-netns", str(host.path), "--metrics-bind-address", "0")
    try:
        with ServerProcess("up", options=options, data_dir=tmp_path / "data") as running:
            yield running
    finally:
        host.remove()


@pytest.fixture
def cgroups(tmp_path: Path) -> Iterator[Cgroups]:
    mark = hashlib.sha256(os.path.realpath(tmp_path / "data").encode()).hexdigest()
    found = Cgroups(discover(), f"sandpool-{mark[:6]}")
    yield found
    found.close()


def reach(server: ServerProcess) -> Client:
    return Client(HttpTransport(load(server.kubeconfig)))


async def make_pool(client: Client) -> None:
    container = {"name": "runtime", "image": IMAGE}
    template = {"metadata": {"annotations": {FREEZE_WHILE_WARM: "true"}}, "spec": {"containers": [container]}}
    await client.create(SANDBOX_TEMPLATE, new(SANDBOX_TEMPLATE, "t", spec={"podTemplate": template}), "default")
    spec = {"replicas": POOL, "sandboxTemplateRef": {"name": "t"}}
    await client.create(SANDBOX_WARM_POOL, new(SANDBOX_WARM_POOL, "p", spec=spec), "default")


async def claims_of(client: Client) -> dict[str, Object]:
    return {each["metadata"]["name"]: each for each in (await client.list(SANDBOX_CLAIM, "default"))["items"]}


def sandbox_of(claim: Object) -> str:
    return str(((claim.get("status") or {}).get("sandbox") or {}).get("name") or "")


async def at_rest(client: Client, cgroups: Cgroups, wanted: set[str]) -> bool:
    """Every claim has its own running sandbox, the pool is full, and nothing else runs."""
    claims = await claims_of(client)
    pods: list[Object] = (await client.list(POD, "default", label_selector=SANDBOX_NAME_HASH))["items"]
    running = cgroups.group()
    return (
        set(claims) == wanted
        and all(map(is_ready, claims.values()))
        and len({sandbox_of(claim) for claim in claims.values()}) == len(wanted)
        and len(pods) == len(wanted) + POOL
        and all(map(is_ready, pods))
        and {pod["metadata"]["uid"] for pod in pods} == set(running.children())
        and all(is_populated(cgroups.group(uid)) for uid in running.children())
    )


async def test_state_is_restored_after_each_kill(server: ServerProcess, cgroups: Cgroups) -> None:
    rng = Random(815)
    wanted: list[str] = []
    given: dict[str, str] = {}  # the sandbox of a claim, once it was seen to have one
    client = reach(server)
    await make_pool(client)
    for kill in range(1, KILLS + 1):
        name = f"claim-{kill}"
        spec = {"warmPoolRef": {"name": "p"}}
        await client.create(SANDBOX_CLAIM, new(SANDBOX_CLAIM, name, spec=spec), "default")
        wanted.append(name)
        if len(wanted) > CLAIMS:
            await client.delete(SANDBOX_CLAIM, wanted.pop(rng.randrange(CLAIMS)), "default")
        await asyncio.sleep(rng.uniform(0.0, 0.8))
        await client.close()
        server.restart(crash=True, within=60.0)
        client = reach(server)
        for known, claim in (await claims_of(client)).items():
            if known in wanted and sandbox_of(claim):
                assert given.setdefault(known, sandbox_of(claim)) == sandbox_of(claim), f"{known} after kill {kill}"
        if kill % EVERY == 0:
            await until(lambda client=client: at_rest(client, cgroups, set(wanted)), within=WITHIN)  # type: ignore[misc]
    assert len(given) > KILLS / 4, "hardly a claim was served between kills"
    await client.close()
    server.restart()  # told to stop, it ends every sandbox
    client = reach(server)
    await until(lambda: at_rest(client, cgroups, set(wanted)), within=WITHIN)
    await client.close()
