"""Pools and claims of templates that a user applies with ``kubectl``, without the defaults of ``template create``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandpool.api.conditions import STATE_LOST
from sandpool.api.kinds import SANDBOX_CLAIM, SANDBOX_WARM_POOL
from sandpool.testing.waiting import until
from tests.support.applied_pool import WITHIN, applied
from tests.support.kubectl import Kubectl, find_kubectls
from tests.support.playground import Playground

pytestmark = pytest.mark.isolation
KUBECTLS = find_kubectls()


@pytest.mark.skipif(not KUBECTLS, reason="needs kubectl")
async def test_pool_whose_members_crash_shows_their_last_line(home: Playground, tmp_path: Path) -> None:
    command = ["sh", "-c", "echo boom module missing >&2; exit 3"]
    async with applied(home, "crashing", command=command) as made:
        shown = await made.condition(
            SANDBOX_WARM_POOL, "crashing", "Progressing", lambda each: "exit code 3" in each["message"]
        )
        assert shown["message"].endswith('container "main" ended with exit code 3 (Error): "boom module missing"')
        assert "boom module missing" in home.works("why", "pool", "crashing")
        await made.condition(
            SANDBOX_WARM_POOL, "crashing", "ReplicaFailure", lambda each: "boom module missing" in each["message"]
        )
        kubectl = Kubectl(list(KUBECTLS.values())[-1], home.kubeconfig, tmp_path, made.namespace)
        described = kubectl("describe", "sandboxwarmpool", "crashing")
        lines = [" ".join(line.split()) for line in described.splitlines()]
        causes = [at for at, line in enumerate(lines) if line.startswith("Message:") and "boom module missing" in line]
        assert "Reason: MemberNotStarting" in [lines[at + 2] for at in causes], described
        said = home.fails("pool", "scale", "crashing", "2", "--wait", "5s")
        told = [line for line in said.splitlines() if line.startswith("pool crashing is not ready yet: ")]
        assert any("boom module missing" in line for line in told), said


async def test_claimed_sandbox_that_dies_shows_its_last_line(home: Playground) -> None:
    """The program of the sandbox runs until a file appears, and then fails."""
    script = "until [ -e /tmp/stop ]; do sleep 0.1; done; echo boom out of ideas >&2; exit 4"
    async with applied(home, "dying", command=["sh", "-c", script]) as made:
        await made.claimed()
        home.run("exec", "dying", "--", "touch", "/tmp/stop")
        shown = await made.condition(SANDBOX_CLAIM, "dying", STATE_LOST, lambda each: True)
        assert 'ended with exit code 4 (Error): "boom out of ideas"' in shown["message"]
        assert "boom out of ideas" in home.works("why", "dying")


async def test_limits_of_all_cores_without_requests_schedule(home: Playground) -> None:
    """Kubernetes takes the limits as requests then, and not even one of these would fit on the machine."""
    limits = {"cpu": str(os.cpu_count()), "memory": "1Gi"}
    async with applied(home, "limited", size=2, resources={"limits": limits}) as made:

        async def ready() -> bool:
            status = (await made.get(SANDBOX_WARM_POOL, "limited")).get("status") or {}
            return bool(status.get("readyReplicas") == 2)

        await until(ready, within=WITHIN)
        await made.claimed()
        assert home.works("exec", "limited", "--", "echo", "works") == "works\n"
