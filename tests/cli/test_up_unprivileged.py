"""``sandpool up`` without root: pods are confined, and missing features are reported."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files

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
from sandpool.testing.objects import pod
from sandpool.testing.waiting import until
from tests.support.isolation import processes
from tests.support.other_user import NoOtherUser, OtherUser, other_user

KINDS = {type.kind: type for type in (SANDBOX_TEMPLATE, SANDBOX_WARM_POOL, SANDBOX_CLAIM)}
QUICKSTART = files("sandpool.cli") / "manifests" / "quickstart.yaml"

UNLISTED = ("--unlisted", "--ephemeral", "--router-bind-address", "127.0.0.1:0")
pytestmark = pytest.mark.isolation


@pytest.fixture
def user() -> Iterator[OtherUser]:
    try:
        with other_user() as found:
            yield found
    except NoOtherUser as why:
        pytest.skip(str(why))


@pytest.fixture
def up(user: OtherUser) -> Iterator[Component]:
    place = user.place
    command = user.command(
        "-m", "sandpool.cli.main", "up", *UNLISTED, "--metrics-bind-address", "0", "--port", "0",
        "--data-dir", place / "data", "--kubeconfig", place / "kubeconfig",
    )  # fmt: skip
    component = Component("sandpool up", command, place / "log")
    component.start()
    try:
        component.wait_for(" is running, pid ", 60.0)
        yield component
    finally:
        component.stop(30.0)


def of(uid: int) -> list[str]:
    return [name for owner, name in processes() if owner == uid]


async def ready_pods(client: Client, count: int) -> list[Object]:
    async def all_ready() -> list[Object]:
        found: list[Object] = (await client.list(POD, "default", label_selector=SANDBOX_NAME_HASH))["items"]
        return found if len(found) == count and all(map(is_ready, found)) else []

    return await until(all_ready, within=60.0)


async def test_unprivileged_pool_is_confined(up: Component, user: OtherUser) -> None:
    client = Client(HttpTransport(load(user.place / "kubeconfig")))
    for document in yaml.safe_load_all(QUICKSTART.read_text()):
        await client.create(KINDS[document["kind"]], document, "default")
    pods = await ready_pods(client, 3)
    node = (await client.list(NODE))["items"][0]

    # Whatever they lack is said to who starts it and in the API.
    said = up.tail()
    assert "runs pods confined by bwrap" in said
    for type in ("SandboxLimitsNotEnforced", "SandboxUserShared", "SandboxNetworkUnavailable"):
        condition = condition_of(node, type)
        assert condition is not None and condition["status"] == "True"
        assert condition["message"] in said
    assert condition_of(node, "SandboxesNotIsolated") is None
    missing = condition_of(node, "RuntimesUnavailable")
    assert missing is not None and "crun: crun needs root" in missing["message"]

    # Killed and started again, it finds what runs; told to stop, it leaves nothing.
    before = {each["metadata"]["name"]: each["status"]["containerStatuses"][0]["containerID"] for each in pods}
    await client.close()
    up.kill()
    logged = up.log.stat().st_size
    up.start()
    up.wait_for(" is running, pid ", 60.0, since=logged)
    client = Client(HttpTransport(load(user.place / "kubeconfig")))
    found = await ready_pods(client, 3)
    await client.close()
    assert {each["metadata"]["name"]: each["status"]["containerStatuses"][0]["containerID"] for each in found} == before
    assert len(of(user.uid)) >= 3 * 4  # bwrap twice, the program, and who holds the network
    assert up.end() == 0

    async def nothing_left() -> bool:
        return of(user.uid) == []

    await until(nothing_left)


async def test_simulated_pod_runs_one_process_for_its_network(up: Component, user: OtherUser) -> None:
    """Its network is held by a process as that of any other, and nothing else of it is one."""
    client = Client(HttpTransport(load(user.place / "kubeconfig")))
    before = len(of(user.uid))
    container = {"name": "main", "image": "sandpool.local/python"}
    spec = {"containers": [container], "runtimeClassName": "simulated"}
    await client.create(POD, pod("hollow", spec=spec), "default")

    async def ready() -> bool:
        return is_ready(await client.get(POD, "hollow", "default"))

    async def gone() -> bool:
        names = {each["metadata"]["name"] for each in (await client.list(POD, "default"))["items"]}
        return "hollow" not in names and len(of(user.uid)) == before

    await until(ready, within=60.0)
    assert len(of(user.uid)) == before + 1
    await client.delete(POD, "hollow", "default")
    await until(gone, within=60.0)
    await client.close()
