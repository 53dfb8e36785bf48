"""The agent: a node that registers itself and runs the pods that are bound to it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from sandpool.api.conditions import condition_of
from sandpool.api.kinds import LEASE, NODE, RUNTIME_CLASS
from sandpool.api.quantity import parse
from sandpool.kube.client import StrategicPatch
from sandpool.node.heartbeat import PERIOD

if TYPE_CHECKING:
    from tests.node.conftest import NodeRig


async def test_pod_runs_and_is_reported(rig: NodeRig) -> None:
    await rig.create()

    status = await rig.status()
    assert status["phase"] == "Running"
    assert status["podIPs"] == [{"ip": "10.1.0.1"}]
    assert status["hostIP"] == "192.0.2.1"
    assert await rig.conditions() == {
        "PodReadyToStartContainers": "True",
        "Initialized": "True",
        "Ready": "True",
        "ContainersReady": "True",
        "PodScheduled": "True",
    }
    state = await rig.state()
    assert state["state"] == {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    assert (state["ready"], state["started"], state["restartCount"]) == (True, True, 0)
    assert state["imageID"] == "sha256:0"
    assert state["containerID"].startswith("sandpool://")


async def test_node_registers_itself(rig: NodeRig) -> None:
    node = await rig.client.get(NODE, "node-1")
    assert node["metadata"]["labels"]["kubernetes.io/hostname"] == "node-1"
    assert node["metadata"]["labels"]["kubernetes.io/os"] == "linux"
    status = node["status"]
    assert status["capacity"].keys() == {"cpu", "memory", "ephemeral-storage", "pods"}
    assert parse(status["allocatable"]["memory"]) < parse(status["capacity"]["memory"])
    assert status["runtimeHandlers"] == [{"name": "fake"}]
    assert {"type": "InternalIP", "address": "192.0.2.1"} in status["addresses"]
    found = {each["type"]: each["status"] for each in status["conditions"]}
    assert found == {"MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False", "Ready": "True"}


async def test_weaknesses_are_node_conditions(rig: NodeRig) -> None:
    rig.network.weaknesses = {"NetworkPolicyUnavailable": "no privileges for nftables"}
    rig.unavailable["gvisor"] = "runsc is not installed"
    await rig.restart()
    conditions = (await rig.client.get(NODE, "node-1"))["status"]["conditions"]
    found = {each["type"]: (each["status"], each["message"]) for each in conditions}
    assert found["NetworkPolicyUnavailable"] == ("True", "no privileges for nftables")
    assert found["RuntimesUnavailable"] == ("True", "gvisor: runsc is not installed")


async def test_condition_of_a_weakness_comes_and_goes(rig: NodeRig) -> None:
    async def types() -> set[str]:
        node = await rig.client.get(NODE, "node-1")
        return {each["type"] for each in node["status"]["conditions"]}

    rig.network.weaknesses = {"NetworkPoliciesNotEnforced": "nft: no"}
    await rig.passes(PERIOD)
    assert "NetworkPoliciesNotEnforced" in await types()
    rig.network.weaknesses = {}
    await rig.passes(PERIOD)
    assert "NetworkPoliciesNotEnforced" not in await types()


async def test_condition_of_a_past_weakness_is_removed(rig: NodeRig) -> None:
    rig.unavailable["gvisor"] = "runsc is not installed"
    await rig.restart()
    rig.unavailable.clear()
    await rig.restart()
    node = await rig.client.get(NODE, "node-1")
    assert "RuntimesUnavailable" not in {each["type"] for each in node["status"]["conditions"]}
    assert not node["metadata"].get("annotations")


async def test_node_renews_its_lease(rig: NodeRig) -> None:
    async def renewed() -> str:
        lease = await rig.client.get(LEASE, "node-1", "kube-node-lease")
        assert lease["spec"]["holderIdentity"] == "node-1"
        return str(lease["spec"]["renewTime"])

    assert await renewed() == "2026-01-01T00:00:00.000000Z"
    await rig.passes(25)
    assert await renewed() == "2026-01-01T00:00:20.000000Z"


async def test_node_survives_an_unreachable_api(rig: NodeRig) -> None:
    rig.wire.fault = lambda request: ConnectionError("cut")
    await rig.passes(60)
    rig.wire.fault = lambda request: None
    await rig.passes(60)
    lease = await rig.client.get(LEASE, "node-1", "kube-node-lease")
    assert lease["spec"]["renewTime"] == "2026-01-01T00:02:00.000000Z"
    await rig.create()
    assert (await rig.conditions())["Ready"] == "True"


@pytest.mark.parametrize("cut", [True, False], ids=["cut", "asleep"])
async def test_node_writes_ready_after_a_silence(rig: NodeRig, cut: bool) -> None:
    """The control plane marks a silent node Unknown."""
    if cut:
        rig.wire.fault = lambda request: ConnectionError("cut")
        await rig.passes(50)
    else:
        rig.clock.start += timedelta(seconds=50)  # a machine that is suspended counts no seconds meanwhile
    unknown = {"conditions": [{"type": "Ready", "status": "Unknown"}]}
    await rig.client.patch(NODE, "node-1", StrategicPatch({"status": unknown}), subresource="status")
    rig.wire.heal()
    await rig.passes(PERIOD)
    ready = condition_of(await rig.client.get(NODE, "node-1"), "Ready")
    assert ready is not None
    assert ready["status"] == "True"


async def test_deleted_node_registers_again(rig: NodeRig) -> None:
    await rig.client.delete(NODE, "node-1")
    await rig.passes(2 * PERIOD)
    assert (await rig.client.get(NODE, "node-1"))["status"]["runtimeHandlers"] == [{"name": "fake"}]


async def test_runtime_classes_are_published(rig: NodeRig) -> None:
    rig.unavailable["gvisor"] = "runsc is not installed"
    rig.settings = replace(rig.settings, publish_classes=True)
    await rig.restart()
    await rig.restart()
    found = (await rig.client.list(RUNTIME_CLASS))["items"]
    assert {each["metadata"]["name"]: each["handler"] for each in found} == {"fake": "fake", "gvisor": "gvisor"}


async def test_pods_of_other_nodes_are_left_alone(rig: NodeRig) -> None:
    await rig.create(spec={"nodeName": "node-2"})
    assert rig.starts() == []
    assert (await rig.status())["phase"] == "Pending"


async def test_failed_worker_is_replaced_and_containers_keep_running(
    rig: NodeRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await rig.create()
    container = rig.container()
    with monkeypatch.context() as broken:
        broken.setattr("sandpool.node.pods.worker.compute_plan", lambda state, now: 1 / 0)
        worker = rig.agent.find("default", "pod")
        assert worker is not None
        worker.pod_updated(await rig.get())
        await rig.settle()
    assert "failed and is replaced" in caplog.text
    await rig.passes(2)
    assert rig.agent.find("default", "pod") not in (None, worker)
    assert (container.pid is not None, rig.starts()) == (True, ["main"])
    container.end(1)
    await rig.settle()
    assert rig.starts() == ["main", "main"]


async def test_running_pods_survive_a_failed_self_test(rig: NodeRig) -> None:
    await rig.create()
    container = rig.container()
    await rig.create("other")
    rig.is_able = False
    await rig.restart()
    assert (await rig.state())["state"].keys() == {"running"}
    assert (container.pid is not None, rig.starts()) == (True, ["main", "main"])
    await rig.delete("other", grace=0)
    assert await rig.gone("other"), "it can be ended, too"
    rig.is_able = True
    await rig.restart()
    state = await rig.state()
    assert (state["restartCount"], container.pid is not None) == (0, True)


async def test_runtime_with_failed_self_test_starts_nothing(rig: NodeRig) -> None:
    await rig.create()
    rig.is_able = False
    await rig.restart()
    rig.container().end(1)
    await rig.passes(60)
    assert rig.starts() == ["main"]
    rig.is_able = True
    await rig.restart()
    await rig.passes(60)
    assert rig.starts() == ["main", "main"]
