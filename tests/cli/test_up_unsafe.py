"""``sandpool up --allow-unsafe-process-runtime`` without root: nothing is isolated, that is said, and it works."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp
import pytest
import yaml

from sandpool.api.conditions import condition_of, is_ready
from sandpool.api.kinds import NODE, POD, SANDBOX_CLAIM, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.api.labels import SANDBOX_NAME_HASH
from sandpool.api.resource import Object
from sandpool.bench.child_process import Component
from sandpool.kube.client import Client
from sandpool.kube.http import HttpTransport
from sandpool.kube.kubeconfig import load
from sandpool.node.cgroups.environment_groups import EnvironmentGroups
from sandpool.testing.waiting import until

SETPRIV = shutil.which("setpriv")
USER = 54_321
# To another user than root, with nothing of root's but to read the interpreter, wherever it is installed.
READS = "--inh-caps=+dac_read_search --ambient-caps=+dac_read_search"
KINDS = {type.kind: type for type in (SANDBOX_TEMPLATE, SANDBOX_WARM_POOL, SANDBOX_CLAIM)}
QUICKSTART = files("sandpool.cli") / "manifests" / "quickstart.yaml"

UNLISTED = ("--unlisted", "--ephemeral", "--router-bind-address", "127.0.0.1:0")
pytestmark = pytest.mark.skipif(os.geteuid() == 0 and SETPRIV is None, reason="setpriv is not installed")


@pytest.fixture
def place() -> Iterator[Path]:
    """Not in a directory of pytest's, which only root may enter."""
    with TemporaryDirectory() as name:
        if os.geteuid() == 0:
            os.chown(name, USER, USER)
        yield Path(name)


@contextmanager
def running(place: Path, *options: str) -> Iterator[Component]:
    """``sandpool up`` as a user who is not root."""
    command: list[str | Path] = []
    if os.geteuid() == 0:
        command += [str(SETPRIV), f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *READS.split()]
    command += [sys.executable, "-m", "sandpool.cli.main", "up", *UNLISTED, *options, "--metrics-bind-address", "0"]
    command += ["--data-dir", place / "data", "--kubeconfig", place / "kubeconfig", "--port", "0"]
    component = Component("sandpool up", command, place / "log")
    component.start()
    try:
        component.wait_for(" is running, pid ", 60.0)
        yield component
    finally:
        component.stop(30.0)


@pytest.fixture
def up(place: Path) -> Iterator[Component]:
    with running(place, "--allow-unsafe-process-runtime") as component:
        yield component


@pytest.fixture
async def client(up: Component, place: Path) -> AsyncIterator[Client]:
    client = Client(HttpTransport(load(place / "kubeconfig")))
    yield client
    await client.close()


async def ready_pods(client: Client, count: int) -> list[Object]:
    async def all_ready() -> list[Object]:
        found: list[Object] = (await client.list(POD, "default", label_selector=SANDBOX_NAME_HASH))["items"]
        return found if len(found) == count and all(map(is_ready, found)) else []

    return await until(all_ready, within=60.0)


async def run_in(pod: Object, command: str) -> Object:
    async with aiohttp.ClientSession() as session:
        url = f"http://{pod['status']['podIP']}:8888/execute"
        async with session.post(url, json={"command": command}) as answer:
            found: Object = await answer.json()
            return found


async def test_unsafe_runtime_serves_a_claim_without_root(client: Client, up: Component, place: Path) -> None:
    for document in yaml.safe_load_all(QUICKSTART.read_text()):
        await client.create(KINDS[document["kind"]], document, "default")

    async def claimed() -> bool:
        return is_ready(await client.get(SANDBOX_CLAIM, "my-claim", "default"))

    await until(claimed, within=60.0)
    pods = await ready_pods(client, 3)
    assert len({pod["status"]["podIP"] for pod in pods}) == 3
    box = (await client.get(SANDBOX_CLAIM, "my-claim", "default"))["status"]["sandbox"]["name"]
    pod = next(each for each in pods if each["metadata"]["name"] == box)
    user = USER if os.geteuid() == 0 else os.geteuid()
    assert (await run_in(pod, "id -u"))["stdout"] == f"{user}\n"

    # It is said in the log, to who starts it, and in the API.
    said = up.tail()
    assert said.count("NOT ISOLATED") == 2 and "runs pods without isolation" in said
    node = (await client.list(NODE))["items"][0]
    for type in ("SandboxesNotIsolated", "SandboxNetworkShared"):
        condition = condition_of(node, type)
        assert condition is not None and condition["status"] == "True"

    # Killed and started again, it finds what runs; told to stop, it leaves nothing.
    before = {each["metadata"]["name"]: each["status"]["containerStatuses"][0]["containerID"] for each in pods}
    up.kill()
    logged = up.log.stat().st_size
    up.start()
    up.wait_for(" is running, pid ", 60.0, since=logged)
    again = Client(HttpTransport(load(place / "kubeconfig")))
    found = await ready_pods(again, 3)
    await again.close()
    assert {each["metadata"]["name"]: each["status"]["containerStatuses"][0]["containerID"] for each in found} == before
    marked = EnvironmentGroups(place / "data" / "node" / "processes").group()
    assert len(marked.processes()) == 3
    assert up.end() == 0
    assert marked.processes() == []
