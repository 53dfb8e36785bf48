"""Order in which the containers of a pod start and end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.fake_runtime import FakeContainer

if TYPE_CHECKING:
    from tests.node.conftest import NodeRig


def named(*names: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"name": name, "image": "example.com/image:1", **fields} for name in names]


SIDECAR = {"restartPolicy": "Always"}


async def test_init_containers_run_in_order_before_the_others(rig: NodeRig) -> None:
    await rig.create(spec={"initContainers": named("one", "two"), "containers": named("main", "other")})

    assert rig.starts() == ["one"]
    await rig.passes(2)
    assert (await rig.status())["phase"] == "Pending"
    assert (await rig.state("two"))["state"] == {"waiting": {"reason": "PodInitializing"}}
    assert (await rig.state("main"))["state"] == {"waiting": {"reason": "PodInitializing"}}
    initialized = await rig.condition("Initialized")
    assert (initialized["status"], initialized["reason"]) == ("False", "ContainersNotInitialized")
    assert initialized["message"] == "containers with incomplete status: [one two]"

    rig.container("one").end(0)
    await rig.settle()
    assert rig.starts() == ["one", "two"]
    rig.container("two").end(0)
    await rig.settle()
    assert rig.starts() == ["one", "two", "main", "other"]
    assert (await rig.status())["phase"] == "Running"
    assert (await rig.state("one"))["state"]["terminated"]["reason"] == "Completed"
    assert (await rig.state("one"))["ready"] is True


async def test_failed_init_container_is_restarted(rig: NodeRig) -> None:
    await rig.create(spec={"initContainers": named("init"), "containers": named("main")})
    rig.container("init").end(3)
    await rig.settle()
    assert rig.starts() == ["init", "init"]
    rig.container("init").end(0)
    await rig.settle()
    assert rig.starts() == ["init", "init", "main"]
    assert (await rig.state("init"))["restartCount"] == 1


async def test_failed_init_container_fails_a_pod_with_restart_policy_never(rig: NodeRig) -> None:
    await rig.create(spec={"initContainers": named("init"), "containers": named("main"), "restartPolicy": "Never"})
    rig.container("init").end(3)
    await rig.settle()
    assert rig.starts() == ["init"]
    status = await rig.status()
    assert status["phase"] == "Failed"
    assert (await rig.state("init"))["state"]["terminated"]["exitCode"] == 3
    assert (await rig.condition("Ready"))["reason"] == "PodFailed"


async def test_sidecar_starts_before_the_others_and_stays(rig: NodeRig) -> None:
    await rig.create(spec={"initContainers": [*named("side", **SIDECAR), *named("init")], "containers": named("main")})
    assert rig.starts() == ["side", "init"]
    rig.container("init").end(0)
    await rig.settle()
    assert rig.starts() == ["side", "init", "main"]
    assert (await rig.conditions())["Ready"] == "True"

    rig.container("side").end(1)
    await rig.settle()
    assert rig.starts() == ["side", "init", "main", "side"]
    assert rig.container("main").pid is not None


async def test_main_containers_wait_for_the_startup_probe_of_a_sidecar(rig: NodeRig) -> None:
    probe = {"tcpSocket": {"port": 80}, "periodSeconds": 1}
    await rig.create(spec={"initContainers": named("side", **SIDECAR, startupProbe=probe), "containers": named("main")})
    assert rig.starts() == ["side"]
    rig.network.open.add(80)
    await rig.passes(1)
    assert rig.starts() == ["side", "main"]


async def test_sidecars_do_not_keep_a_pod_from_ending(rig: NodeRig) -> None:
    await rig.create(
        spec={
            "initContainers": named("first", "second", **SIDECAR),
            "containers": named("main"),
            "restartPolicy": "OnFailure",
        }
    )
    first, second = rig.container("first"), rig.container("second")
    first.stubborn = second.stubborn = True
    rig.container("main").end(0)
    await rig.settle()
    assert (second.signals, first.signals) == ([15], [])
    assert (await rig.status())["phase"] == "Running"
    second.end(0)
    await rig.settle()
    assert first.signals == [15]
    first.end(0)
    await rig.settle()
    assert (await rig.status())["phase"] == "Succeeded"
    assert (await rig.condition("Initialized"))["reason"] == "PodCompleted"


@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (1, "Failed")])
async def test_pod_with_restart_policy_never_ends_with_its_last_container(rig: NodeRig, code: int, phase: str) -> None:
    await rig.create(spec={"containers": named("main", "other"), "restartPolicy": "Never"})
    rig.container("main").end(0)
    await rig.settle()
    assert (await rig.condition("Ready"))["status"] == "False"
    rig.container("other").end(code)
    await rig.settle()
    assert (await rig.status())["phase"] == phase


async def test_ended_pod_releases_its_resources(rig: NodeRig) -> None:
    await rig.create(spec={"restartPolicy": "Never"})
    rig.container().end(0)
    await rig.settle()
    assert rig.holdings() == []
    await rig.passes(5)
    assert (await rig.conditions())["PodReadyToStartContainers"] == "False"
    assert (await rig.status())["podIP"] == "10.1.0.1"


async def test_container_that_fails_to_start_does_not_block_the_others(rig: NodeRig) -> None:
    def refuse(container: FakeContainer) -> None:
        if container.spec.name == "main":
            container.end(127, message="no such file")

    rig.runtime.on_start = refuse
    await rig.create(spec={"containers": named("main", "other")})
    assert "other" in rig.starts()
    state = await rig.state()
    assert state["lastState"]["terminated"]["reason"] == "StartError"
    assert state["lastState"]["terminated"]["message"] == "no such file"
