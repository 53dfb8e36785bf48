"""``sandpool up`` as a process: claims over HTTPS, stopped and started again."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import urllib.request
from collections import Counter
from pathlib import Path

import pytest

from sandpool.api.conditions import is_ready
from sandpool.api.kinds import NODE as NODE_KIND
from sandpool.api.kinds import POD, SANDBOX, SANDBOX_CLAIM, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.api.labels import RUN, SANDBOX_NAME_HASH
from sandpool.api.resource import Object
from sandpool.bench.server_process import ServerProcess
from sandpool.kube.client import Client
from sandpool.kube.http import HttpTransport
from sandpool.kube.kubeconfig import load
from sandpool.testing.objects import new, pod_template
from sandpool.testing.waiting import until
from sandpool.testing.world import owner_of
from tests.support.kubectl import Kubectl, find_kubectls

NODE = ("--simulated-nodes", "1")
KUBECTLS = find_kubectls()


def reach(server: ServerProcess) -> Client:
    return Client(HttpTransport(load(server.kubeconfig)))


async def apply(client: Client, replicas: int) -> None:
    template = new(SANDBOX_TEMPLATE, "python", spec={"podTemplate": pod_template()})
    await client.create(SANDBOX_TEMPLATE, template, "default")
    pool = new(SANDBOX_WARM_POOL, "pool", spec={"replicas": replicas, "sandboxTemplateRef": {"name": "python"}})
    await client.create(SANDBOX_WARM_POOL, pool, "default")


async def claim(client: Client, *names: str) -> None:
    claims = [new(SANDBOX_CLAIM, name, spec={"warmPoolRef": {"name": "pool"}}) for name in names]
    await asyncio.gather(*(client.create(SANDBOX_CLAIM, each, "default") for each in claims))


async def served(client: Client, count: int) -> dict[str, str]:
    """Wait until so many claims are there and ready; the sandbox of each."""

    async def ready() -> list[Object] | None:
        claims: list[Object] = (await client.list(SANDBOX_CLAIM, "default"))["items"]
        return claims if len(claims) == count and all(map(is_ready, claims)) else None

    claims = await until(ready)
    assert claims is not None
    return {each["metadata"]["name"]: each["status"]["sandbox"]["name"] for each in claims}


async def filled(client: Client, count: int) -> None:
    """Wait until so many sandboxes of the pool are there and ready."""

    async def full() -> bool:
        boxes = (await client.list(SANDBOX, "default"))["items"]
        members = [box for box in boxes if owner_of(box) == ("SandboxWarmPool", "pool")]
        return len(members) == count and all(map(is_ready, members))

    await until(full)


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "killed"])
async def test_claims_are_served_and_found_again_after_a_restart(crash: bool) -> None:
    async with ServerProcess("up", options=NODE) as server:
        client = reach(server)
        await apply(client, 4)
        await filled(client, 4)
        await claim(client, "a", "b", "c")
        before = await served(client, 3)
        await client.close()

        server.restart(crash=crash)
        client = reach(server)
        assert await served(client, 3) == before
        await claim(client, "d")
        after = await served(client, 4)
        await filled(client, 4)
        owned = [owner_of(box) for box in (await client.list(SANDBOX, "default"))["items"]]
        await client.close()
        ended = server.process.end() if not crash else 0
    assert ended == 0
    assert after == {**before, "d": after["d"]}
    assert len(set(after.values())) == 4
    assert sorted(owned) == [("SandboxClaim", name) for name in "abcd"] + [("SandboxWarmPool", "pool")] * 4


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "killed"])
async def test_a_start_releases_the_claims_of_commands_that_ended_with_the_home(crash: bool) -> None:
    async with ServerProcess("up", options=NODE) as server:
        client = reach(server)
        await apply(client, 2)
        await filled(client, 2)
        await claim(client, "kept")
        left = new(SANDBOX_CLAIM, "left", spec={"warmPoolRef": {"name": "pool"}}, metadata={"labels": {RUN: "true"}})
        await client.create(SANDBOX_CLAIM, left, "default")
        before = await served(client, 2)
        await client.close()

        server.restart(crash=crash)
        client = reach(server)
        assert await served(client, 1) == {"kept": before["kept"]}
        await client.close()


async def test_several_nodes_share_the_pods() -> None:
    async with ServerProcess("up", options=("--simulated-nodes", "3")) as server:
        client = reach(server)
        await apply(client, 12)
        await filled(client, 12)
        pods = (await client.list(POD, "default", label_selector=SANDBOX_NAME_HASH))["items"]
        await client.close()
    assert len({pod["status"]["podIP"] for pod in pods}) == 12
    assert Counter(pod["spec"]["nodeName"] for pod in pods) == {"simulated-1": 4, "simulated-2": 4, "simulated-3": 4}


async def test_simulated_nodes_are_nodes_until_a_start_without_them(tmp_path: Path) -> None:
    async def nodes(server: ServerProcess) -> dict[str, bool]:
        client = reach(server)
        found = (await client.list(NODE_KIND))["items"]
        await client.close()
        return {each["metadata"]["name"]: is_ready(each) for each in found}

    for given, expected in (("2", {"simulated-1": True, "simulated-2": True}), ("0", {})):
        options = ("--no-node", "--simulated-nodes", given, "--metrics-bind-address", "0", "--router-bind-address", "0")
        async with ServerProcess("up", options=options, data_dir=tmp_path) as server:
            assert await nodes(server) == expected


@pytest.mark.skipif(not KUBECTLS, reason="no kubectl: install the Debian package kubectl")
async def test_kubectl_describes_a_simulated_node(tmp_path: Path) -> None:
    async with ServerProcess("up", options=(*NODE, "--max-pods", "50")) as server:
        client = reach(server)
        await apply(client, 2)
        await filled(client, 2)
        await client.close()
        kubectl = Kubectl(list(KUBECTLS.values())[-1], server.kubeconfig, tmp_path)
        described = await asyncio.to_thread(kubectl, "describe", "node", "simulated-1")
        listed = await asyncio.to_thread(kubectl, "get", "nodes", "--no-headers")
    assert listed.split()[:2] == ["simulated-1", "Ready"]
    assert "Non-terminated Pods:          (2 in total)" in described
    assert "HolderIdentity:  simulated-1" in described
    assert [line.split() for line in described.splitlines() if line.startswith("  pods:")] == [["pods:", "50"]] * 2


def rows(said: str) -> dict[str, list[str]]:
    """The table that ``sandpool up`` prints, by the first word of a line."""
    table = said.partition(" is running, pid ")[2].splitlines()[1:]
    return {words[0]: words[1:] for line in table if (words := line.split())}


def test_startup_shows_steps_then_a_table_with_addresses_and_the_next_command() -> None:
    with ServerProcess("up", options=NODE) as server:
        said = server.process.tail(100)
        table = rows(said)
        text = urllib.request.urlopen(table["metrics"][0], timeout=20).read().decode()
    steps = said.partition("Sandpool ")[0].splitlines()
    assert steps == [
        "loading",
        f"opening the data in {server.directory / 'data'}",
        "preparing the node",
        "starting the router",
        "starting the controllers",
    ]
    assert table["API"] == [server.url, "export", f"KUBECONFIG={server.kubeconfig}"]
    assert " ".join(table["node"]) == "1 simulated node: pods become ready, but nothing runs in them"
    assert table["more"][-1] == "--help"
    assert 'workqueue_depth{controller="sandboxclaim",name="sandboxclaim",priority="0"} 0.0' in text


def test_up_without_a_node_says_so() -> None:
    with ServerProcess("up", options=("--metrics-bind-address", "0", "--no-node")) as server:
        table = rows(server.process.tail())
    assert table["metrics"] == ["none"]
    expected = "no node: sandboxes stay Pending; use --simulated-nodes 1 to try the API"
    assert " ".join(table["node"]).startswith(expected)


def test_metrics_port_in_use_is_reported(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        data = ["--data-dir", str(tmp_path / "data"), "--port=0", "--no-node"]
        command = [sys.executable, "-m", "sandpool.cli.main", "up", *data]
        done = subprocess.run(
            [*command, "--metrics-bind-address", address], capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"Error: cannot serve metrics and health at {address} or 0: ")


def test_router_is_started_by_default() -> None:
    with ServerProcess("up", options=NODE) as server:
        url = rows(server.process.tail())["router"][0]
        assert urllib.request.urlopen(f"{url}/healthz", timeout=20).read() == b'{"status":"ok"}'
    with ServerProcess("up", options=(*NODE, "--router-bind-address", "0")) as server:
        assert rows(server.process.tail())["router"] == ["none"]


def test_short_router_secret_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"short")
    command = [sys.executable, "-m", "sandpool.cli.main", "up", "--data-dir", str(tmp_path / "data"), "--port=0"]
    done = subprocess.run(
        [*command, "--no-node", "--router-token-secret-file", str(tmp_path / "secret")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.endswith(
        "\nError: --router-token-secret-file: the secret for tokens has 5 bytes; at least 32 are required\n"
    )


async def test_audit_log_has_user_and_verb(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    async with ServerProcess("up", options=(*NODE, "--audit-log", str(log))) as server:
        client = reach(server)
        await apply(client, 1)
        await claim(client, "mine")
        await served(client, 1)
        await client.close()
    asked = [json.loads(line) for line in log.read_text().splitlines()]
    writers = {(each["verb"], each["resource"], each["user"]) for each in asked if "verb" in each}
    assert ("create", "sandboxclaims", "sandpool-admin") in writers
    assert ("create", "sandboxes", "sandpool-controllers") in writers
    assert ("create", "pods", "sandpool-controllers") in writers
    assert ("patch", "pods", "sandpool-node") in writers
    assert ("create", "services", "sandpool-router-control") in writers
    assert {(verb, resource) for verb, resource, user in writers if user == "sandpool-router"} == {
        (verb, resource) for verb in ("list", "watch") for resource in ("pods", "sandboxes")
    }
