"""The agent: a node that registers itself and runs the pods that are bound to it."""

from __future__ import annotations

from tests.node.conftest import NodeRig


async def test_a_pod_runs(rig: NodeRig) -> None:
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
