"""Containers that end: restart policies, back-off, exit codes and termination messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sandpool.api.kinds import POD
from sandpool.kube.client import JsonPatch
from tests.support.fake_runtime import FakeContainer

if TYPE_CHECKING:
    from tests.node.conftest import NodeRig


@pytest.mark.parametrize(
    ("policy", "code", "again"),
    [
        ("Always", 0, True),
        ("Always", 1, True),
        ("OnFailure", 0, False),
        ("OnFailure", 1, True),
        ("Never", 0, False),
        ("Never", 1, False),
    ],
)
async def test_restart_policy_decides_on_a_restart(rig: NodeRig, policy: str, code: int, again: bool) -> None:
    await rig.create(spec={"restartPolicy": policy})
    rig.container().end(code)
    await rig.settle()
    assert len(rig.starts()) == (2 if again else 1)
    assert (await rig.status())["phase"] == ("Running" if again else "Failed" if code else "Succeeded")


async def test_restarts_back_off_from_10_seconds_to_5_minutes(rig: NodeRig) -> None:
    """The first restart is immediate, then 10 s, doubled each time up to 5 min."""
    rig.runtime.on_start = lambda container: container.end(1)
    await rig.create()
    pauses, before = [], rig.clock.monotonic()
    assert len(rig.starts()) == 2
    for count in range(3, 10):
        while len(rig.starts()) < count:
            await rig.clock.jump()
            await rig.settle()
        pauses.append(rig.clock.monotonic() - before)
        before = rig.clock.monotonic()
    assert pauses == [10, 20, 40, 80, 160, 300, 300]


async def test_status_during_crash_loop_back_off(rig: NodeRig) -> None:
    rig.runtime.on_start = lambda container: container.end(7)
    created = await rig.create()
    state = await rig.state()
    assert state["state"]["waiting"] == {
        "reason": "CrashLoopBackOff",
        "message": f"back-off 10s restarting failed container=main pod=pod_default({created['metadata']['uid']})",
    }
    assert state["lastState"]["terminated"]["exitCode"] == 7
    assert state["lastState"]["terminated"]["reason"] == "Error"
    assert (state["restartCount"], state["ready"]) == (1, False)
    assert (await rig.status())["phase"] == "Running"
    assert ("BackOff", "Back-off restarting failed container main in pod default/pod") in await rig.events()


async def test_long_run_resets_the_back_off(rig: NodeRig) -> None:
    await rig.create()
    for _ in range(3):
        rig.container().end(1)
        await rig.passes(600)
    assert len(rig.starts()) == 4
    await rig.passes(601)
    rig.container().end(1)
    await rig.settle()
    assert len(rig.starts()) == 5


async def test_oom_kill_is_reported_as_such(rig: NodeRig) -> None:
    await rig.create(spec={"restartPolicy": "Never"})
    rig.container().end(137, oom_killed=True)
    await rig.settle()
    ended = (await rig.state())["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (137, "OOMKilled")


async def test_termination_message_is_reported(rig: NodeRig) -> None:
    await rig.create(spec={"restartPolicy": "Never"})
    container = rig.container()
    (mount,) = [each for each in container.spec.mounts if each.target == "/dev/termination-log"]
    mount.source.write_text("the disk was full")  # type: ignore[union-attr]
    container.end(1)
    await rig.settle()
    assert (await rig.state())["state"]["terminated"]["message"] == "the disk was full"


async def test_log_tail_replaces_a_missing_termination_message(rig: NodeRig) -> None:
    rig.logs.text = b"Traceback"
    container = {"name": "main", "image": "i", "terminationMessagePolicy": "FallbackToLogsOnError"}
    await rig.create(spec={"restartPolicy": "Never", "containers": [container]})
    rig.container().end(1)
    await rig.settle()
    assert (await rig.state())["state"]["terminated"]["message"] == "Traceback"


async def test_each_run_has_a_new_container(rig: NodeRig) -> None:
    await rig.create()
    first = await rig.state()
    rig.container().end(1)
    await rig.passes(5)
    second = await rig.state()
    assert second["restartCount"] == 1
    assert second["containerID"] != first["containerID"]
    assert second["lastState"]["terminated"]["containerID"] == first["containerID"]
    assert rig.logs.followed == [("main", 0), ("main", 1)]


async def test_active_deadline_stops_the_pod(rig: NodeRig) -> None:
    await rig.create(spec={"activeDeadlineSeconds": 60})
    await rig.passes(59)
    assert (await rig.status())["phase"] == "Running"
    await rig.passes(1)
    status = await rig.status()
    assert (status["phase"], status["reason"]) == ("Failed", "DeadlineExceeded")
    assert status["message"] == "Pod was active on the node longer than the specified deadline"
    assert rig.runtime.containers == {}


async def test_container_may_end_during_its_post_start_hook(rig: NodeRig) -> None:
    def hang(container: FakeContainer, command: object, stdio: object) -> None:
        return None

    rig.runtime.on_execute = hang
    lifecycle = {"postStart": {"exec": {"command": ["prepare"]}}}
    await rig.create(
        spec={"restartPolicy": "Never", "containers": [{"name": "main", "image": "i", "lifecycle": lifecycle}]}
    )
    rig.container().end(2)
    await rig.settle()
    assert (await rig.status())["phase"] == "Failed"


@pytest.mark.parametrize("policy", ["Always", "Never"])
async def test_changed_image_restarts_the_container(rig: NodeRig, policy: str) -> None:
    await rig.create(spec={"restartPolicy": policy})
    first = rig.container()
    image = {"op": "replace", "path": "/spec/containers/0/image", "value": "example.com/image:2"}
    await rig.client.patch(POD, "pod", JsonPatch([image]), "default")
    await rig.passes(5)
    assert first.signals == [15]
    assert rig.images.asked[-1][0] == "example.com/image:2"
    state = await rig.state()
    assert (state["image"], state["restartCount"], state["ready"]) == ("example.com/image:2", 1, True)
    await rig.restart()
    await rig.passes(5)
    assert len(rig.starts()) == 2
