"""``sandpool bench claims`` as a process of its own, on clusters that are there already."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from random import Random

import pytest
import pytest_asyncio
from click.testing import CliRunner

from sandpool.api.kinds import NAMESPACE
from sandpool.bench.child_process import ReservedPort
from sandpool.bench.server_process import ServerProcess
from sandpool.bench.subjects import client_of
from sandpool.cli.bench import bench
from sandpool.controllers.manager import ControllerManager
from sandpool.engine.clock import SystemClock
from sandpool.node.simulated import SimulatedNode
from tests.support.control_plane import ControlPlane
from tests.support.http_backends import KubernetesBackend

WITHIN = 120.0


@pytest_asyncio.fixture
async def up(tmp_path: Path) -> AsyncIterator[ServerProcess]:
    """The embedded API with controllers, used as an external cluster."""
    (tmp_path / "audit.log").touch()
    reserved = ReservedPort()
    reserved.close()
    looks = ("--audit-log", str(tmp_path / "audit.log"), "--metrics-bind-address", f"127.0.0.1:{reserved.number}")
    async with ServerProcess("up", options=("--simulated-nodes", "1", *looks)) as process:
        yield process


async def start(*arguments: str | Path, env: Mapping[str, str] | None = None) -> Process:
    command = (sys.executable, "-m", "sandpool.cli.main", "bench", "claims", *map(str, arguments))
    return await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE, env=env)


async def finish(process: Process) -> tuple[str, str]:
    async with asyncio.timeout(WITHIN):
        output, errors = await process.communicate()
    return output.decode(), errors.decode()


async def namespaces(kubeconfig: Path) -> set[str]:
    async with client_of(kubeconfig) as client:
        found = {item["metadata"]["name"] for item in (await client.list(NAMESPACE))["items"]}
    return {name for name in found if name.startswith("sandpool-bench-")}


async def test_run_reports_requests_and_reconciles(up: ServerProcess, tmp_path: Path) -> None:
    address, target = up.options[-1], tmp_path / "out" / "run.json"
    looks = ("--audit-log", tmp_path / "audit.log", "--metrics-url", f"http://{address}/metrics")
    size = ("--burst-size", "3", "--warmpool-size", "3", "--json", target)
    output, errors = await finish(await start("burst", "--kubeconfig", up.kubeconfig, *looks, *size))
    assert "removing namespace sandpool-bench-" in errors
    (run,) = json.loads(target.read_text())["runs"]
    assert (run["claims"], run["served"], run["left_out"]) == (3, 3, [])
    counts = {(each["writer"], each["what"]): each["count"] for each in run["requests"]}
    assert counts["client", "create sandboxclaims"] == 3
    assert counts["controllers", "patch sandboxclaims/status"] >= 3
    assert run["reconciles"]["sandboxclaim"] >= 3
    assert run["memory_bytes"]["controller"] > 0
    mean = run["mean_latency_ms"]
    assert 0 < mean["metric"] <= mean["client"], "the client waits for its request and its watch as well"
    assert "| burst    | cluster |" in output
    assert f"| {mean['metric']:,.1f} " in output
    assert await namespaces(up.kubeconfig) == set()


async def test_claims_with_a_lifetime_are_deleted_during_the_load(up: ServerProcess, tmp_path: Path) -> None:
    target = tmp_path / "run.json"
    looks = ("--audit-log", tmp_path / "audit.log", "--json", target)
    load = ("single", "--total-bursts", "3", "--warmpool-size", "2", "--lifetime", "0")
    await finish(await start(*load, "--kubeconfig", up.kubeconfig, *looks))
    (run,) = json.loads(target.read_text())["runs"]
    counts = {(each["writer"], each["what"]): each["count"] for each in run["requests"]}
    assert counts["client", "delete sandboxclaims"] == counts["client", "create sandboxclaims"] == 3


async def test_running_home_is_found_and_measured(tmp_path: Path) -> None:
    """Without a kubeconfig, as its user starts it."""
    target = tmp_path / "run.json"
    async with ServerProcess("up", options=("--simulated-nodes", "1"), user_home=tmp_path) as home:
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("KUBE", "XDG_", "SUDO_"))}
        size = ("--burst-size", "2", "--warmpool-size", "2", "--json", target)
        run = await start("burst", "--home", "local", *size, env={**environ, "HOME": str(tmp_path)})
        _, errors = await finish(run)
        assert "removing namespace sandpool-bench-" in errors
        (result,) = json.loads(target.read_text())["runs"]
        assert (result["claims"], result["served"]) == (2, 2)
        assert await namespaces(home.kubeconfig) == set()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
async def test_interrupted_run_cleans_up(up: ServerProcess, how: signal.Signals) -> None:
    process = await start(
        "sustained", "--qps", "2", "--seconds", "100", "--warmpool-size", "2", "--kubeconfig", up.kubeconfig
    )
    assert process.stderr is not None
    async with asyncio.timeout(WITHIN):
        while b"waiting" not in (line := await process.stderr.readline()):
            assert line, "it ended"
    assert len(await namespaces(up.kubeconfig)) == 1
    process.send_signal(how)
    _, errors = await finish(process)
    assert process.returncode == 1
    assert "removing namespace" in errors and "Aborted!" in errors
    assert await namespaces(up.kubeconfig) == set()


async def test_unreadable_metrics_are_reported_and_the_run_cleans_up(up: ServerProcess) -> None:
    address = f"http://{up.options[-1]}/nowhere"
    process = await start("single", "--kubeconfig", up.kubeconfig, "--metrics-url", address, "--warmpool-size", "1")
    _, errors = await finish(process)
    assert process.returncode == 1
    assert f"Error: no metrics from {address}" in errors
    assert await namespaces(up.kubeconfig) == set()


@pytest.mark.kubernetes
async def test_claims_are_measured_on_a_real_kubernetes(control_plane: ControlPlane, tmp_path: Path) -> None:
    backend, clock = await KubernetesBackend.start(control_plane), SystemClock()
    controllers = ControllerManager(backend.client_for("controllers"), clock, Random(1))
    node = asyncio.create_task(SimulatedNode(backend.client_for("node"), clock).run())
    kubeconfig = control_plane.write_kubeconfig(tmp_path / "kubeconfig", user="users")
    target = tmp_path / "run.json"
    await controllers.start()
    try:
        arguments = ("burst", "--kubeconfig", kubeconfig, "--audit-log", control_plane.audit_log, "--json", target)
        output, errors = await finish(await start(*arguments, "--burst-size", "4", "--warmpool-size", "4"))
        left = await namespaces(kubeconfig)
    finally:
        await controllers.stop()
        node.cancel()
        await asyncio.gather(node, return_exceptions=True)
        await backend.close()
    assert target.exists(), errors
    (run,) = json.loads(target.read_text())["runs"]
    assert (run["served"], run["warm"], run["cold"]) == (4, 4, 0)
    counts = {(each["writer"], each["what"]): each["count"] for each in run["requests"]}
    assert counts["client", "create sandboxclaims"] == 4
    assert counts["controllers", "patch sandboxclaims/status"] >= 4
    assert "name the controller's metrics with --metrics-url" in output
    assert left == set()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--kubeconfig", "there"], "name the scenario to run on the cluster"),
        (["single", "--kubeconfig", "there", "--home", "http"], "drop --home"),
        (["single", "--metrics-url", "http://there"], "need a cluster: add --kubeconfig"),
        (["single", "--context", "a", "--metrics-url", "http://a", "--metrics-url", "http://b"], "give each one"),
    ],
)
def test_conflicting_options_are_rejected(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(bench, ["claims", *arguments])
    assert (result.exit_code, said in result.output) == (2, True), result.output
