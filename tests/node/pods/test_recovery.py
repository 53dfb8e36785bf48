"""Agents that restart: running containers are adopted, ended ones reported, orphans removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sandpool.api.kinds import NODE, POD
from sandpool.api.resource import Object
from tests.support.fake_runtime import pod_sandbox

if TYPE_CHECKING:
    from tests.node.conftest import NodeRig


async def test_running_container_is_adopted(rig: NodeRig) -> None:
    await rig.create()
    before = await rig.get()
    await rig.passes(30)
    writes = len(rig.status_writes())

    await rig.restart()

    assert rig.starts() == ["main"]
    assert (await rig.get())["status"] == before["status"]
    assert len(rig.status_writes()) == writes
    assert rig.logs.followed == [("main", 0), ("main", 0)]
    rig.container().end(1)
    await rig.settle()
    assert rig.starts() == ["main", "main"]


async def test_lost_container_is_reported(rig: NodeRig) -> None:
    await rig.create(spec={"restartPolicy": "Never"})
    await rig.stop()
    rig.container().end(5)
    rig.agent = rig.new_agent()
    await rig.start()
    assert (await rig.state())["state"]["terminated"]["exitCode"] == 5
    assert (await rig.status())["phase"] == "Failed"


@pytest.mark.parametrize(
    ("seconds", "finished"),
    [(60, "2026-01-01T00:01:00Z"), (-5, "2026-01-01T00:00:00Z"), (999, "2026-01-01T00:05:00Z")],
    ids=["meanwhile", "before it began", "in the future"],
)
async def test_end_during_downtime_is_reported_with_its_time(rig: NodeRig, seconds: int, finished: str) -> None:
    began = rig.clock.now().timestamp()
    await rig.create(spec={"restartPolicy": "Never"})
    await rig.stop()
    rig.container().end(5, ended_at=began + seconds)
    await rig.passes(300)
    rig.agent = rig.new_agent()
    await rig.start()
    ended = (await rig.state())["state"]["terminated"]
    assert (ended["startedAt"], ended["finishedAt"]) == ("2026-01-01T00:00:00Z", finished)


async def test_stopping_node_reports_how_each_pod_ended(rig: NodeRig) -> None:
    """A sidecar ends last, and its status is not urgent."""
    side = {"name": "side", "image": "i", "restartPolicy": "Always"}
    await rig.create(spec={"initContainers": [side], "restartPolicy": "Always"})
    await rig.passes(10)
    await rig.agent.stop(keep=False, grace=5)
    status = await rig.status()
    states = [each["state"] for each in (*status["initContainerStatuses"], *status["containerStatuses"])]
    assert [state.get("terminated", {}).get("exitCode") for state in states] == [143, 143]


async def test_reported_end_is_not_reported_again(rig: NodeRig) -> None:
    await rig.create(spec={"restartPolicy": "Never", "containers": _two()})
    rig.container("one").end(0)
    await rig.passes(10)
    before = await rig.state("one")
    await rig.restart()
    await rig.passes(10)
    assert await rig.state("one") == before
    assert rig.container("two").pid is not None


async def test_adopted_container_stays_ready_until_its_next_probe(rig: NodeRig) -> None:
    rig.network.open.add(80)
    probe = {"tcpSocket": {"port": 80}}
    await rig.create(spec={"containers": [{"name": "main", "image": "i", "readinessProbe": probe}]})
    since = (await rig.condition("Ready"))["lastTransitionTime"]
    await rig.passes(60)
    await rig.restart()
    await rig.passes(60)
    assert (await rig.condition("Ready"))["lastTransitionTime"] == since


async def test_pod_deleted_during_downtime_is_stopped(rig: NodeRig) -> None:
    await rig.create()
    container = rig.container()
    await rig.stop()
    await rig.client.delete(POD, "pod", "default")
    rig.agent = rig.new_agent()
    await rig.start()
    assert await rig.gone()
    assert container.signals == [15]


async def test_orphans_are_removed(rig: NodeRig) -> None:
    created = await rig.create()
    uid = created["metadata"]["uid"]
    container = rig.container()
    await rig.stop()
    await rig.client.delete(POD, "pod", "default", grace_period_seconds=0)
    await rig.runtime.open_pod(pod_sandbox(rig.directory / "pods" / "stray", "stray"))
    rig.network.addresses["other"] = "10.1.0.9"
    assert (rig.directory / "pods" / uid).is_dir()

    rig.agent = rig.new_agent()
    await rig.start()

    assert container.pid is None
    assert not rig.runtime.open
    assert not rig.network.addresses
    assert list((rig.directory / "pods").iterdir()) == []


async def test_pods_restart_after_a_reboot(rig: NodeRig) -> None:
    """No container is left: init containers run again, and main containers count a restart."""
    init = [{"name": "init", "image": "i"}]
    await rig.create(spec={"initContainers": init})
    rig.container("init").end(0)
    await rig.passes(5)
    await rig.stop()
    rig.runtime.containers.clear()
    rig.runtime.open.clear()
    rig.network.addresses.clear()

    rig.agent = rig.new_agent()
    await rig.start()
    assert rig.starts() == ["init", "main", "init"]
    rig.container("init").end(0)
    await rig.passes(5)
    state = await rig.state()
    assert state["restartCount"] == 1
    assert state["lastState"]["terminated"]["reason"] == "ContainerStatusUnknown"
    assert (await rig.conditions())["Ready"] == "True"
    assert (await rig.status())["podIP"] == "10.1.0.2"


async def test_pod_with_restart_policy_never_fails_after_a_reboot(rig: NodeRig) -> None:
    await rig.create(spec={"restartPolicy": "Never"})
    await rig.stop()
    rig.runtime.containers.clear()
    rig.agent = rig.new_agent()
    await rig.start()
    assert (await rig.status())["phase"] == "Failed"
    assert (await rig.state())["state"]["terminated"]["exitCode"] == 137


async def test_stopping_ends_every_container_and_leaves_the_pods(rig: NodeRig) -> None:
    await rig.create("one")
    await rig.create("two")
    containers = list(rig.runtime.started)
    await rig.stop(keep=False)
    assert [(each.pid, each.signals) for each in containers] == [(None, [15]), (None, [15])]
    assert not rig.runtime.open
    assert not rig.network.addresses
    node = await rig.client.get(NODE, "node-1")
    (ready,) = [each for each in node["status"]["conditions"] if each["type"] == "Ready"]
    assert (ready["status"], ready["reason"]) == ("False", "NodeStopped")

    rig.agent = rig.new_agent()
    await rig.start()
    assert (await rig.conditions("one"))["Ready"] == "True"
    assert len(rig.starts()) == 4


async def test_stopping_kills_containers_that_ignore_the_signal(rig: NodeRig) -> None:
    await rig.create(spec={"terminationGracePeriodSeconds": 3600})
    container = rig.container()
    container.stubborn = True
    before = rig.clock.monotonic()
    await rig.stop(keep=False, grace=10)
    assert container.pid is None
    assert rig.clock.monotonic() - before < 15


async def test_pod_of_the_same_name_is_another_pod(rig: NodeRig) -> None:
    first = await rig.create()
    await rig.delete(grace=0)
    second = await rig.create()

    async def only_second() -> bool:
        await rig.settle()
        return set(rig.agent.workers) == {second["metadata"]["uid"]}

    await rig.until(only_second)
    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    assert (await rig.conditions())["Ready"] == "True"


def _two() -> list[Object]:
    return [{"name": "one", "image": "i"}, {"name": "two", "image": "i"}]
