"""Pods of the runtime ``simulated`` on a real node: everything is real except the processes."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from sandpool.api.kinds import EVENT, NODE, POD, RUNTIME_CLASS
from sandpool.engine.clock import SystemClock
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import Forbidden
from sandpool.node.assembly import Node
from sandpool.node.cgroups.mounts import NoCgroups
from sandpool.node.runtimes.simulated import NOTHING_RUNS
from sandpool.testing.waiting import until
from tests.node.test_assembly import Refusing
from tests.support.real_node import RealNode, real_node

pytestmark = pytest.mark.isolation

SIMULATED = {"runtimeClassName": "simulated"}


def another(rig: RealNode, refused: str = "nothing") -> Node:
    """A second node on the machine of a stopped one."""
    client = Client(Refusing(rig.server.client(name="node").transport, refused))
    return Node(client, SystemClock(), Random(), rig.node.settings, logs=rig.logs)


async def events(rig: RealNode, name: str) -> dict[str, str]:
    found = (await rig.client.list(EVENT, "default"))["items"]
    return {each["reason"]: each["note"] for each in found if each["regarding"]["name"] == name}


async def test_simulated_pod_has_the_usual_lifecycle(tmp_path: Path) -> None:
    volumes = [{"name": "disk", "emptyDir": {}}]
    mounts = [{"name": "disk", "mountPath": "/disk"}]
    async with real_node(tmp_path) as rig:
        name = await rig.create(container={"volumeMounts": mounts}, spec={**SIMULATED, "volumes": volumes})
        found = await rig.ready(name)
        uid, status = found["metadata"]["uid"], found["status"]
        assert status["podIP"] and status["containerStatuses"][0]["state"]["running"]
        assert uid in await rig.node.network.attached()
        assert list((rig.node.settings.directory / "pods" / uid / "_volumes").rglob("*disk*"))
        assert rig.pod_cgroups() == [] and await rig.output(name) == ""
        assert "Started" in await events(rig, name)
        await rig.delete(name)
        await rig.gone(name)
        assert os.listdir(rig.node.settings.directory / "pods") == []
        assert uid not in await rig.node.network.attached()


async def test_simulated_pod_stops_on_deletion(tmp_path: Path) -> None:
    """It stops long before its grace period ends. A finalizer keeps the pod, so its last status is visible."""
    async with real_node(tmp_path) as rig:
        spec = {**SIMULATED, "terminationGracePeriodSeconds": 3600}
        name = await rig.create(spec=spec, metadata={"finalizers": ["sandpool.dev/test"]})
        await rig.ready(name)
        await rig.delete(name)
        found = await rig.phase(name, "Failed")
        assert found["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 143
        await rig.client.patch(POD, name, MergePatch({"metadata": {"finalizers": None}}), "default")
        await rig.gone(name)


async def test_next_agent_adopts_a_simulated_pod(tmp_path: Path) -> None:
    async with real_node(tmp_path) as rig:
        name = await rig.create(spec=SIMULATED)
        before = (await rig.ready(name))["status"]
        await rig.node.stop(keep=True)
        with pytest.raises(Forbidden):
            await another(rig, "/leases").start()  # a start that fails ends nothing of an earlier node
        rig.node = another(rig)
        await rig.node.start()
        try:
            after = (await rig.ready(name))["status"]
            assert after["containerStatuses"] == before["containerStatuses"]
            assert after["podIP"] == before["podIP"]
            assert rig.node.agent.workers[(await rig.get(name))["metadata"]["uid"]].resources.running("main")
            await rig.delete(name)
            await rig.gone(name)
            await rig.close()
        finally:
            await rig.node.stop()


async def test_exec_in_a_simulated_pod_is_an_error(tmp_path: Path) -> None:
    probe = {"exec": {"command": ["true"]}, "periodSeconds": 1}
    async with real_node(tmp_path) as rig:
        name = await rig.create(container={"readinessProbe": probe}, spec=SIMULATED)

        async def told() -> str:
            return (await events(rig, name)).get("Unhealthy", "")

        assert await until(told) == f"Readiness probe failed: {NOTHING_RUNS}"
        await rig.ready(name, "False")


async def test_init_containers_are_rejected_in_simulated_pods(tmp_path: Path) -> None:
    init = {"name": "first", "image": "sandpool.local/python", "command": ["true"]}
    async with real_node(tmp_path) as rig:
        found = await rig.phase(await rig.create(spec={**SIMULATED, "initContainers": [init]}), "Failed")
        assert found["status"]["reason"] == "UnsupportedField"
        assert "spec.initContainers[0]: nothing runs in a simulated pod" in found["status"]["message"]
        await rig.phase(
            await rig.create("true", spec={"initContainers": [init], "restartPolicy": "Never"}), "Succeeded"
        )


async def test_simulated_runtime_must_be_requested(tmp_path: Path) -> None:
    async with real_node(tmp_path) as rig:
        assert await rig.look("echo it runs") == "it runs\n"
        runtimes = rig.node.runtimes
        assert runtimes.choose("").name == runtimes.default != "simulated"
        assert runtimes.choose("simulated").name == "simulated"
        described = (await rig.client.get(RUNTIME_CLASS, "simulated"))["metadata"]["annotations"]
        assert "nothing runs in it" in described["kubernetes.io/description"]
        (machine,) = (await rig.client.list(NODE))["items"]
        assert machine["metadata"]["labels"]["runtime.sandpool.dev/simulated"] == "true"


async def test_simulated_runtime_alone_does_not_make_a_node_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the node would be ready and receive real pods. Existing simulated pods stay known."""

    def none() -> None:
        raise NoCgroups("there are none")

    async with real_node(tmp_path) as rig:
        name = await rig.create(spec=SIMULATED)
        before = (await rig.ready(name))["status"]
        await rig.node.stop(keep=True)
        with monkeypatch.context() as without:
            without.setattr("sandpool.node.assembly.discover", none)
            rig.node = another(rig)
            await rig.node.start()
        try:
            assert dict(rig.node.runtimes.available) == {}
            assert "beside a runtime that runs programs" in rig.node.runtimes.unavailable["simulated"]
            assert (await rig.get(name))["status"]["containerStatuses"] == before["containerStatuses"]
            await rig.delete(name)
            await rig.gone(name)
            await rig.close()
        finally:
            await rig.node.stop()
