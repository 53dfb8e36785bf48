"""Pod worker: status writes, events, what containers get, and errors."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from sandpool.api.kinds import CONFIG_MAP, EVENT, POD, RUNTIME_CLASS, SECRET, SERVICE
from sandpool.api.labels import FREEZE_WHILE_WARM, WARM_POOL
from sandpool.kube.client import MergePatch
from sandpool.kube.errors import ServiceUnavailable
from sandpool.kube.transport import Request
from sandpool.node.pods import worker
from sandpool.node.pods.interfaces import ImageFailure, NetworkFailure, VolumeFailure
from sandpool.node.pods.state import Moment, PodState
from sandpool.node.runtimes.runtime import RuntimeFailure
from sandpool.testing.objects import new
from tests.support.fake_runtime import FakeContainer

if TYPE_CHECKING:
    from tests.node.conftest import NodeRig


def main(**fields: Any) -> dict[str, Any]:
    return {"containers": [{"name": "main", "image": "example.com/image:1", **fields}]}


# -- status writes -------------------------------------------------------------------------------------------------


async def test_quick_start_costs_one_status_write(rig: NodeRig) -> None:
    await rig.create()
    await rig.passes(60)
    assert len(rig.status_writes()) == 1


async def test_start_with_a_readiness_probe_costs_two_status_writes(rig: NodeRig) -> None:
    await rig.create(spec=main(readinessProbe={"tcpSocket": {"port": 80}, "periodSeconds": 1}))
    await rig.passes(3)
    rig.network.open.add(80)
    await rig.passes(60)
    assert (await rig.conditions())["Ready"] == "True"
    assert len(rig.status_writes()) == 2


async def test_slow_start_costs_two_status_writes(rig: NodeRig) -> None:
    """The first write shows that the pod is starting."""
    init = [{"name": "init", "image": "i"}]
    await rig.create(spec={"initContainers": init})
    await rig.passes(4)
    assert "running" in (await rig.state("init"))["state"]
    rig.container("init").end(0)
    await rig.passes(60)
    assert (await rig.conditions())["Ready"] == "True"
    assert len(rig.status_writes()) == 2


async def test_failed_status_write_is_retried(rig: NodeRig) -> None:
    failures = iter([ServiceUnavailable("not now"), ConnectionError("cut")])

    def fault(request: Request) -> Exception | None:
        return next(failures, None) if request.path.endswith("/status") else None

    rig.wire.fault = fault
    await rig.create()
    assert "conditions" not in await rig.status()
    await rig.passes(3)
    assert (await rig.conditions())["Ready"] == "True"


async def test_start_is_reported_as_an_event(rig: NodeRig) -> None:
    await rig.create()
    assert await rig.events() == [
        ("Started", "Started container main"),
    ]


# -- what a container is given -------------------------------------------------------------------------------------


async def test_variables_come_from_all_sources(rig: NodeRig) -> None:
    await rig.client.create(CONFIG_MAP, new(CONFIG_MAP, "settings", data={"MODE": "fast"}), "default")
    secret = {"password": base64.b64encode(b"hush").decode()}
    await rig.client.create(SECRET, new(SECRET, "keys", data=secret), "default")
    ports = [{"port": 80, "protocol": "TCP"}]
    await rig.client.create(SERVICE, new(SERVICE, "front-end", spec={"ports": ports}), "default")
    await rig.settle()
    env = [
        {"name": "GREETING", "value": "$(MODE) and $(UNKNOWN)"},
        {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "password"}}},
        {"name": "WHERE", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "MEMORY", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
    ]
    await rig.create(
        spec=main(
            env=env,
            envFrom=[{"configMapRef": {"name": "settings"}}],
            resources={"limits": {"memory": "64Mi"}},
            command=["run", "$(GREETING)"],
        )
    )
    spec = rig.container().spec
    assert spec.argv == ("run", "fast and $(UNKNOWN)")
    wanted = {
        "MODE": "fast",
        "GREETING": "fast and $(UNKNOWN)",
        "PASSWORD": "hush",
        "WHERE": "10.1.0.1",
        "NODE": "node-1",
        "MEMORY": "64",
        "HOSTNAME": "pod",
    }
    assert {name: spec.env[name] for name in wanted} == wanted
    assert spec.env["FRONT_END_SERVICE_PORT"] == "80"
    assert spec.limits.memory == 64 << 20


async def test_missing_source_delays_the_container(rig: NodeRig) -> None:
    await rig.create(spec=main(envFrom=[{"configMapRef": {"name": "later"}}]))
    waiting = (await rig.state())["state"]["waiting"]
    assert waiting == {"reason": "CreateContainerConfigError", "message": 'configmap "later" not found'}
    await rig.client.create(CONFIG_MAP, new(CONFIG_MAP, "later", data={"A": "1"}), "default")
    await rig.passes(10)
    assert rig.container().spec.env["A"] == "1"
    assert (await rig.conditions())["Ready"] == "True"
    assert (await rig.state())["restartCount"] == 0


async def test_pod_has_its_own_host_user(rig: NodeRig) -> None:
    await rig.create("one")
    await rig.create("two")
    users = [container.pod.host_uid for container in rig.runtime.started]
    assert users == [200_000, 200_001]


async def test_hostname_and_hosts_are_set(rig: NodeRig) -> None:
    await rig.create(
        spec={"hostname": "box", "subdomain": "boxes", "hostAliases": [{"ip": "192.0.2.7", "hostnames": ["db"]}]}
    )
    pod = rig.container().pod
    assert pod.hostname == "box"
    assert "10.1.0.1\tbox.boxes.default.svc.cluster.local\tbox\n192.0.2.7\tdb\n" in pod.hosts
    assert pod.resolv_conf == (
        "search default.svc.cluster.local svc.cluster.local cluster.local\nnameserver 10.96.0.10\noptions ndots:5\n"
    )


# -- what is missing -----------------------------------------------------------------------------------------------


async def test_image_failure_is_reported_and_retried(rig: NodeRig) -> None:
    rig.images.failures["example.com/image:1"] = ImageFailure("ErrImagePull", "no such host")
    await rig.create()
    assert (await rig.state())["state"]["waiting"] == {"reason": "ErrImagePull", "message": "no such host"}
    assert ("Failed", "Error: ErrImagePull: no such host") in await rig.events()
    (warning,) = [each for each in (await rig.client.list(EVENT, "default"))["items"] if each["reason"] == "Failed"]
    assert warning["action"] == "Pulling", "clients know the cause without reading the note"
    assert len(rig.status_writes()) == 1
    await rig.passes(100)
    assert (await rig.state())["state"]["waiting"] == {
        "reason": "ImagePullBackOff",
        "message": 'Back-off pulling image "example.com/image:1": ErrImagePull: no such host',
    }
    assert len(rig.status_writes()) == 2  # however often it was tried
    rig.images.failures.clear()
    await rig.passes(100)
    assert (await rig.conditions())["Ready"] == "True"


async def test_volume_failure_is_reported_and_retried(rig: NodeRig) -> None:
    rig.volumes.failure = VolumeFailure('volume "data": claim "data" is not bound')
    await rig.create()
    waiting = (await rig.state())["state"]["waiting"]
    assert waiting == {"reason": "ContainerCreating", "message": 'volume "data": claim "data" is not bound'}
    assert ("FailedMount", 'volume "data": claim "data" is not bound') in await rig.events()
    rig.volumes.failure = None
    await rig.passes(2)
    assert (await rig.conditions())["Ready"] == "True"
    assert len(rig.network.addresses) == 1


async def test_network_failure_is_reported_and_retried(rig: NodeRig) -> None:
    rig.network.failure = NetworkFailure("no addresses are left")
    await rig.create()
    told = ("FailedCreatePodSandBox", "Failed to create pod sandbox: no addresses are left")
    assert told in await rig.events()
    assert (await rig.status())["phase"] == "Pending"
    await rig.delete()
    assert await rig.gone()


async def test_failed_start_without_restart_fails_the_pod(rig: NodeRig) -> None:
    def refuse(container: FakeContainer) -> None:
        raise RuntimeFailure('exec: "nothing": no such file or directory')

    rig.runtime.on_start = refuse
    await rig.create(spec={"restartPolicy": "Never"})
    assert (await rig.status())["phase"] == "Failed"
    ended = (await rig.state())["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (128, "StartError")
    assert ended["message"] == 'exec: "nothing": no such file or directory'
    assert rig.holdings() == []


async def test_runtime_failure_is_reported_and_retried(rig: NodeRig) -> None:
    def refuse(container: FakeContainer) -> None:
        raise RuntimeFailure("no space left for a cgroup")

    rig.runtime.on_start = refuse
    await rig.create()
    waiting = (await rig.state())["state"]["waiting"]
    assert waiting == {"reason": "RunContainerError", "message": "no space left for a cgroup"}
    rig.runtime.on_start = lambda container: None
    await rig.passes(2)
    assert (await rig.conditions())["Ready"] == "True"


async def test_unavailable_runtime_is_never_replaced(rig: NodeRig) -> None:
    rig.unavailable["gvisor"] = "runsc is not installed"
    await rig.client.create(RUNTIME_CLASS, new(RUNTIME_CLASS, "strong", handler="gvisor"))
    await rig.settle()
    await rig.create(spec={"runtimeClassName": "strong"})
    await rig.passes(5)
    assert rig.starts() == []
    assert (await rig.status())["phase"] == "Pending"
    message = (await rig.state())["state"]["waiting"]["message"]
    expected = "runtime gvisor is not available on this node: runsc is not installed"
    assert message == f"Failed to create pod sandbox: {expected}"


async def test_unsupported_change_is_an_event_and_the_pod_continues(rig: NodeRig) -> None:
    await rig.create()
    found = await rig.get()
    worker = rig.agent.find("default", "pod")
    assert worker is not None
    container = {**found["spec"]["containers"][0], "resources": {"limits": {"cpu": "1"}}}
    changed = {**found, "spec": {**found["spec"], "containers": [container], "ephemeralContainers": [{"name": "d"}]}}
    worker.pod_updated(changed)
    worker.pod_updated(changed)  # said once
    await rig.settle()
    told = [note for reason, note in await rig.events() if reason == "UnsupportedField"]
    assert told == [
        "this node does not support spec.ephemeralContainers[0]: containers cannot be added to a pod that runs; "
        "spec.containers[0].resources: a container that runs keeps what it has"
    ]
    assert rig.starts() == ["main"]
    assert rig.container().pid is not None


async def test_unsupported_field_fails_the_pod(rig: NodeRig) -> None:
    await rig.create(spec={"hostPID": True, **main(securityContext={"privileged": True})})
    status = await rig.status()
    assert (status["phase"], status["reason"]) == ("Failed", "UnsupportedField")
    assert status["message"] == (
        "this node does not support spec.hostPID: a sandbox shares nothing with the host; "
        "spec.containers[0].securityContext.privileged: a sandbox shares nothing with the host"
    )
    assert ("UnsupportedField", status["message"]) in await rig.events()
    assert rig.starts() == []
    await rig.restart()
    assert await rig.status() == status
    await rig.delete()
    assert await rig.gone()


# -- frozen while warm ---------------------------------------------------------------------------------------------

WARM = {"annotations": {FREEZE_WHILE_WARM: "true"}, "labels": {WARM_POOL: "abc"}}


async def test_warm_pods_wait_for_the_background_gate(rig: NodeRig) -> None:
    turns: asyncio.Queue[None] = asyncio.Queue()
    rig.agent.context = replace(rig.agent.context, background_turn=turns.get)
    await rig.create("warm", metadata={"labels": WARM["labels"]})
    await rig.create("cold")
    assert (await rig.conditions("cold"))["Ready"] == "True"
    steps = 0
    while (await rig.conditions("warm")).get("Ready") != "True":
        assert len(rig.network.addresses) == (2 if steps else 1)
        turns.put_nowait(None)
        await rig.settle()
        steps += 1
    assert steps == 4, "to be prepared, created, started and reported"


async def test_ready_warm_pod_is_frozen_and_not_probed(rig: NodeRig) -> None:
    rig.network.open.add(80)
    probe = {"tcpSocket": {"port": 80}}
    await rig.create(metadata=WARM, spec=main(readinessProbe=probe, livenessProbe=probe))
    assert rig.container().paused
    sent = len(rig.network.dialled)
    rig.network.open.clear()
    await rig.passes(300)
    assert len(rig.network.dialled) == sent
    assert (await rig.conditions())["Ready"] == "True"


async def test_claimed_pod_is_thawed_and_probed_again(rig: NodeRig) -> None:
    rig.network.open.add(80)
    await rig.create(metadata=WARM, spec=main(readinessProbe={"tcpSocket": {"port": 80}}))
    await rig.passes(300)
    await rig.client.patch(POD, "pod", MergePatch({"metadata": {"labels": {WARM_POOL: None}}}), "default")
    await rig.settle()
    assert not rig.container().paused
    assert (await rig.conditions())["Ready"] == "True"
    rig.network.open.clear()
    await rig.passes(30)
    assert (await rig.conditions())["Ready"] == "False"


async def test_pod_is_thawed_on_first_use(rig: NodeRig) -> None:
    await rig.create(metadata=WARM)
    frozen = rig.agent.find("default", "pod")
    assert frozen is not None
    await frozen.ensure_thawed()
    assert not rig.container().paused
    await rig.passes(60)
    assert not rig.container().paused


async def test_using_a_running_pod_does_not_replan(rig: NodeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    await rig.create(metadata={"labels": WARM["labels"]})
    running = rig.agent.find("default", "pod")
    assert running is not None

    def decided(state: PodState, now: Moment) -> NoReturn:
        raise AssertionError("the pod was planned again")

    with monkeypatch.context() as patch:
        patch.setattr(worker, "compute_plan", decided)
        await running.ensure_thawed()
        await rig.settle()
    await rig.client.patch(POD, "pod", MergePatch({"metadata": {"annotations": WARM["annotations"]}}), "default")
    await rig.settle()
    assert not rig.container().paused, "that it is used is known all the same"


async def test_only_pods_that_opted_in_are_frozen(rig: NodeRig) -> None:
    await rig.create(metadata={"labels": WARM["labels"]})
    assert not rig.container().paused


async def test_frozen_pod_is_thawed_to_stop(rig: NodeRig) -> None:
    await rig.create(metadata=WARM)
    container = rig.container()
    await rig.delete()
    assert await rig.gone()
    assert container.signals == [15]


async def test_frozen_pod_stays_frozen_for_the_next_agent(rig: NodeRig) -> None:
    await rig.create(metadata=WARM)
    await rig.restart()
    assert rig.container().paused
    assert (await rig.conditions())["Ready"] == "True"
