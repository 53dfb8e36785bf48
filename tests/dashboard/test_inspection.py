"""What the dashboard shows of one object: the waterfall of a claim, and what it reads in a sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sandpool.api.kinds import SANDBOX
from sandpool.api.labels import ASLEEP_SINCE
from sandpool.dashboard.target import DashboardTarget
from sandpool.explain.log_files import LogFiles
from sandpool.kube.client import MergePatch
from sandpool.testing.world import World
from tests.dashboard.conftest import Served, Visitor, serving
from tests.explain.audit_lines import BEGIN, ours

LOOKS = ("activity", "directory", "preview?path=x", "download?path=x", "logs")


@pytest.fixture
def audit_log(tmp_path: Path) -> Path:
    return tmp_path / "audit.log"


@pytest_asyncio.fixture
async def visitor(world: World, target: DashboardTarget, audit_log: Path) -> AsyncIterator[Visitor]:
    async with (
        serving(world, replace(target, audit_log=LogFiles((audit_log,), ()).lines)) as served,
        served.client() as visitor,
    ):
        yield visitor


def write(audit_log: Path, *lines: bytes) -> None:
    audit_log.write_bytes(b"".join(lines))


async def line_about(world: World, name: str) -> Callable[..., bytes]:
    """Make a claim. Returns a function that makes lines of the log, with times since its creationTimestamp."""
    claim = await world.claim(name)
    created = datetime.fromisoformat(claim["metadata"]["creationTimestamp"])
    zero = (created - BEGIN).total_seconds() * 1000

    def line(ms: float, *words: str, **more: Any) -> bytes:
        return ours(zero + ms, *words, namespace=world.namespace, **more)

    return line


async def test_waterfall_is_of_the_present_claim_of_a_name(world: World, visitor: Visitor, audit_log: Path) -> None:
    line = await line_about(world, "crawler")
    write(
        audit_log,
        line(-9000, "create", "sandboxclaims", "crawler", code=201),
        line(-8990, "patch", "sandboxes", "old", owner="SandboxClaim/crawler"),
        line(-5000, "delete", "sandboxclaims", "crawler"),
        line(500, "create", "sandboxclaims", "crawler", code=201),
        line(510, "patch", "sandboxes", "new", owner="SandboxClaim/crawler"),
    )
    trace = await visitor.get(f"/api/trace/{world.namespace}/crawler")
    assert [(step["about"], step["creates"], step["start"]) for step in trace["steps"]] == [
        ("sandboxclaims/crawler", True, 0),
        ("sandboxes/new", False, 10),
    ]
    assert trace["hasSandbox"] is True


async def test_waterfall_of_an_applied_claim_marks_its_creation(
    world: World, visitor: Visitor, audit_log: Path
) -> None:
    line = await line_about(world, "applied")
    write(audit_log, line(0, "patch", "sandboxclaims", "applied", code=201))
    trace = await visitor.get(f"/api/trace/{world.namespace}/applied")
    (step,) = trace["steps"]
    assert (step["creates"], step["verb"], step["purpose"]) == (True, "patch", "claim created (applied)")
    assert trace["hasSandbox"] is False


async def test_waterfall_leaves_out_reads_of_the_dashboard_itself(
    world: World, visitor: Visitor, audit_log: Path
) -> None:
    line = await line_about(world, "mine")
    own = {"userAgent": "sandpool-dashboard/0.1.0"}
    write(
        audit_log,
        line(0, "create", "sandboxclaims", "mine", code=201, **own),
        line(10, "get", "sandboxclaims", "mine", **own),
        line(20, "get", "sandboxclaims", "mine", userAgent="kubectl/v1.36"),
        line(30, "patch", "sandboxes", "box", owner="SandboxClaim/mine"),
        line(40, "get", "pods/exec", "box", **own),
        line(50, "get", "sandboxes", "box", **own),
    )
    trace = await visitor.get(f"/api/trace/{world.namespace}/mine")
    assert [step["start"] for step in trace["steps"]] == [0, 20, 30, 40]


async def test_waterfall_of_a_claim_that_is_gone_is_of_the_last_one(
    world: World, visitor: Visitor, audit_log: Path
) -> None:
    write(
        audit_log,
        *(
            ours(ms, verb, "sandboxclaims", "gone", namespace=world.namespace, code=code)
            for ms, verb, code in ((0, "create", 201), (5, "delete", 200), (10, "create", 201), (17, "delete", 200))
        ),
    )
    trace = await visitor.get(f"/api/trace/{world.namespace}/gone")
    assert [(step["verb"], step["start"]) for step in trace["steps"]] == [("create", 0), ("delete", 7)]


@pytest.mark.parametrize("look", LOOKS)
async def test_read_only_dashboard_leaves_a_sandbox_asleep(read_only: Served, look: str) -> None:
    world = read_only.world
    await world.template(name="python")
    await world.pool(replicas=1, name="python", template="python")
    await world.filled(1)
    (sandbox,) = (await world.client.list(SANDBOX, world.namespace))["items"]
    name = sandbox["metadata"]["name"]
    asleep = {
        "metadata": {"annotations": {ASLEEP_SINCE: "2026-01-01T00:00:00Z"}},
        "spec": {"operatingMode": "Suspended"},
    }
    await world.client.patch(SANDBOX, name, MergePatch(asleep), world.namespace)
    async with read_only.client() as visitor:
        status, answer = await visitor.call("GET", f"/api/sandboxes/{world.namespace}/{name}/{look}")
    assert (status, answer["error"]) == (409, f"sandbox {name} is asleep")
    found = await world.client.get(SANDBOX, name, world.namespace)
    assert found["spec"]["operatingMode"] == "Suspended"
