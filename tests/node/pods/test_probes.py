"""Probes of running pods and their consequences."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from sandpool.node.runtimes.runtime import Command, Stdio
from tests.support.fake_runtime import FakeContainer

if TYPE_CHECKING:
    from tests.node.conftest import NodeRig

COMMAND = {"exec": {"command": ["check"]}}


def with_probes(**probes: Any) -> dict[str, Any]:
    return {"containers": [{"name": "main", "image": "i", **probes}]}


class Checks:
    """Exec probes return the current ``code`` and are counted."""

    def __init__(self, rig: NodeRig, code: int = 0) -> None:
        self.code: int | None = code
        self.sent = 0
        rig.runtime.on_execute = self._answer

    def _answer(self, container: FakeContainer, command: Command, stdio: Stdio) -> int | None:
        self.sent += 1
        os.write(stdio.stdout, b"all is lost\n")
        return self.code


async def ready(rig: NodeRig) -> bool:
    return (await rig.conditions()).get("Ready") == "True"


async def piped(rig: NodeRig, question: Callable[[], object]) -> None:
    """Wait for the output of commands: pipes are not driven by the manual clock."""

    async def answered() -> bool:
        await rig.settle()
        return bool(question())

    await rig.until(answered)


async def test_readiness_probe_decides_readiness(rig: NodeRig) -> None:
    await rig.create(spec=with_probes(readinessProbe={"tcpSocket": {"port": 80}, "periodSeconds": 5}))
    await rig.passes(2)
    assert (await rig.status())["phase"] == "Running"
    assert (await rig.condition("ContainersReady"))["message"] == "containers with unready status: [main]"
    rig.network.open.add(80)
    await rig.passes(5)
    assert await ready(rig)
    rig.network.open.clear()
    await rig.passes(5)
    assert await ready(rig)  # three in a row
    await rig.passes(10)
    assert not await ready(rig)
    assert rig.container().pid is not None


async def test_fast_container_becomes_ready_before_the_period(rig: NodeRig) -> None:
    """The first probe comes too early; the next ones do not wait for the period of ten seconds."""
    await rig.create(spec=with_probes(readinessProbe={"tcpSocket": {"port": 80}}))
    await rig.passes(0.05)
    assert not await ready(rig)
    rig.network.open.add(80)
    await rig.passes(0.1)
    assert await ready(rig)


async def test_probe_waits_for_its_initial_delay(rig: NodeRig) -> None:
    rig.network.open.add(80)
    await rig.create(spec=with_probes(readinessProbe={"tcpSocket": {"port": 80}, "initialDelaySeconds": 30}))
    await rig.passes(29)
    assert not await ready(rig)
    await rig.passes(1)
    assert await ready(rig)


async def test_liveness_restarts_a_container(rig: NodeRig) -> None:
    rig.network.open.add(80)
    await rig.create(spec=with_probes(livenessProbe={"tcpSocket": {"port": 80}, "failureThreshold": 2}))
    first = rig.container()
    rig.network.open.clear()
    await rig.passes(10)
    assert first.pid is not None
    await rig.passes(10)
    assert first.signals == [15]
    assert len(rig.starts()) == 2
    happened = await rig.events()
    assert ("Killing", "Container main failed liveness probe, will be restarted") in happened
    rejected = "Liveness probe failed: dial tcp 10.1.0.1:80: connect: connection refused"
    assert ("Unhealthy", rejected) in happened


async def test_startup_probe_holds_back_the_others(rig: NodeRig) -> None:
    probes = {
        "startupProbe": {"tcpSocket": {"port": 80}, "periodSeconds": 10, "failureThreshold": 6},
        "livenessProbe": {"tcpSocket": {"port": 81}, "failureThreshold": 1},
    }
    await rig.create(spec=with_probes(**probes))
    await rig.passes(45)
    assert len(rig.starts()) == 1  # liveness would have ended it long ago
    assert (await rig.state())["started"] is False
    rig.network.open |= {80, 81}
    await rig.passes(10)
    assert await ready(rig)
    assert (await rig.state())["started"] is True


async def test_startup_probe_fails_after_its_threshold(rig: NodeRig) -> None:
    probe = {"tcpSocket": {"port": 80}, "periodSeconds": 10, "failureThreshold": 3}
    await rig.create(spec=with_probes(startupProbe=probe))
    await rig.passes(19)
    assert len(rig.starts()) == 1
    await rig.passes(1)
    assert len(rig.starts()) == 2


@pytest.mark.parametrize(
    ("greeting", "good"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", True),
        (b"HTTP/1.0 302 Found\r\n\r\n", True),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", False),
        (b"HTTP/1.1 500 \r\n\r\n", False),
        (b"220 ready\r\n", False),
        (b"", False),
    ],
)
async def test_http_probe_sends_its_request_and_reports_the_result(rig: NodeRig, greeting: bytes, good: bool) -> None:
    rig.network.open.add(8080)
    rig.network.greeting = greeting
    container = {
        "name": "main",
        "image": "i",
        "ports": [{"name": "web", "containerPort": 8080}],
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": "web"}, "failureThreshold": 1},
    }
    await rig.create(spec={"containers": [container]})

    async def told() -> bool:
        await rig.settle()
        return await ready(rig) or any(reason == "Unhealthy" for reason, _ in await rig.events())

    await rig.until(told)
    assert await ready(rig) is good


async def test_exec_probe_reports_its_output(rig: NodeRig) -> None:
    checks = Checks(rig, code=1)
    await rig.create(spec=with_probes(readinessProbe={**COMMAND, "failureThreshold": 1}))
    await piped(rig, lambda: checks.sent)

    async def told() -> bool:
        return ("Unhealthy", "Readiness probe failed: all is lost") in await rig.events()

    await rig.until(told)
    assert not await ready(rig)
    checks.code = 0
    await rig.passes(10)
    await rig.until(lambda: ready(rig))


async def test_exec_probe_timeout_kills_the_command_and_fails(rig: NodeRig) -> None:
    checks = Checks(rig)
    checks.code = None
    await rig.create(spec=with_probes(livenessProbe={**COMMAND, "timeoutSeconds": 2, "failureThreshold": 1}))
    container = rig.container()
    await rig.passes(2)
    assert container.processes[0].code.done()
    await rig.until(lambda: _started_twice(rig))
    assert ("Unhealthy", "Liveness probe failed: timed out after 2s") in await rig.events()


async def _started_twice(rig: NodeRig) -> bool:
    await rig.settle()
    return len(rig.starts()) == 2


async def test_probe_overrides_the_grace_period(rig: NodeRig) -> None:
    probe = {"tcpSocket": {"port": 80}, "failureThreshold": 1, "terminationGracePeriodSeconds": 3}
    await rig.create(spec=with_probes(livenessProbe=probe))
    first = rig.runtime.started[0]
    assert first.signals == [15]
    assert len(rig.starts()) == 2


async def test_readiness_gates_decide_readiness(rig: NodeRig) -> None:
    from sandpool.api.kinds import POD
    from sandpool.kube.client import StrategicPatch

    await rig.create(spec={"readinessGates": [{"conditionType": "example.com/fed"}]})
    await rig.passes(2)
    condition = await rig.condition("Ready")
    assert (condition["status"], condition["reason"]) == ("False", "ReadinessGatesNotReady")
    fed = {"type": "example.com/fed", "status": "True"}
    await rig.client.patch(
        POD, "pod", StrategicPatch({"status": {"conditions": [fed]}}), "default", subresource="status"
    )
    await rig.settle()
    assert await ready(rig)
    assert (await rig.conditions())["example.com/fed"] == "True"
