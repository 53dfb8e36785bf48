"""A simulated container does what a container does as far as the agent can tell, and says that it is none."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from sandpool.node.cgroups.limits import Usage
from sandpool.node.runtimes.runtime import Command, ContainerSpec, PodSandbox, Runtime, RuntimeFailure, Stdio
from sandpool.node.runtimes.simulated import SimulatedContainer, SimulatedRuntime
from tests.support.fake_runtime import pod_sandbox
from tests.support.isolation import RUNTIMES

NOTHING = Stdio(0, 1, 2)


@pytest.fixture
def sandbox(tmp_path: Path) -> PodSandbox:
    (tmp_path / "one").mkdir()
    return pod_sandbox(tmp_path / "one", "one")


@pytest.fixture
def runtime(tmp_path: Path) -> SimulatedRuntime:
    return SimulatedRuntime(tmp_path)


async def started(runtime: SimulatedRuntime, sandbox: PodSandbox, **spec: bool) -> SimulatedContainer:
    await runtime.open_pod(sandbox)
    container = await runtime.create(sandbox, ContainerSpec("main", ("sleep", "1"), **spec))  # type: ignore[arg-type]
    await container.start()
    return container


async def test_simulated_runtime_needs_nothing_and_is_not_listed(runtime: SimulatedRuntime) -> None:
    as_any_other: Runtime = runtime  # held by mypy
    assert (as_any_other.name, await as_any_other.probe()) == ("simulated", None)
    assert "simulated" not in RUNTIMES, "what the escape suite calls safe"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, 137)])
async def test_container_runs_until_it_is_signalled(
    runtime: SimulatedRuntime, sandbox: PodSandbox, number: int, code: int
) -> None:
    container = await started(runtime, sandbox)
    ending = asyncio.create_task(container.wait())
    await asyncio.sleep(0)
    assert not ending.done()
    await container.signal(number)
    assert (await ending).code == code
    assert not container.is_running
    await container.kill()
    assert (await container.wait()).code == code


async def test_container_is_killed_by_its_deletion_and_by_that_of_its_pod(
    runtime: SimulatedRuntime, sandbox: PodSandbox
) -> None:
    container = await started(runtime, sandbox)
    await runtime.close_pod(sandbox)
    assert (await container.wait()).code == 137
    await container.delete()
    container = await started(runtime, sandbox)
    await container.delete()
    assert (await container.wait()).code == 137
    await container.delete()
    await runtime.close_pod(sandbox)
    assert os.listdir(sandbox.directory) == []


async def test_container_is_not_running_before_its_start(runtime: SimulatedRuntime, sandbox: PodSandbox) -> None:
    await runtime.open_pod(sandbox)
    container = await runtime.create(sandbox, ContainerSpec("main", ("sleep", "1")))
    with pytest.raises(RuntimeFailure, match="was not started"):
        await container.wait()
    await container.signal(signal.SIGTERM)
    assert not await _runs(container)
    await container.start()
    assert await _runs(container), "a signal before its start is lost"


async def test_commands_are_rejected(runtime: SimulatedRuntime, sandbox: PodSandbox) -> None:
    container = await started(runtime, sandbox)
    with pytest.raises(RuntimeFailure, match="nothing runs in a simulated container"):
        await container.execute(Command(("true",)), NOTHING)
    with pytest.raises(RuntimeFailure, match="nothing runs in a simulated container"):
        container.open_terminal()
    assert container.pid is None
    assert await container.usage() == Usage(0, 0, 0, 0)
    await container.kill()
    with pytest.raises(RuntimeFailure, match="does not run"):
        await container.execute(Command(("true",)), NOTHING)


async def test_streams_exist_and_are_silent(runtime: SimulatedRuntime, sandbox: PodSandbox) -> None:
    container = await started(runtime, sandbox, stdin=True)
    for name in ("stdout", "stderr", "stdin"):
        assert (container.directory / name).is_fifo()
    reader = os.open(container.directory / "stdout", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert os.read(reader, 1) == b""
    finally:
        os.close(reader)


async def test_container_is_paused_and_resumed(runtime: SimulatedRuntime, sandbox: PodSandbox) -> None:
    container = await started(runtime, sandbox)
    await container.pause()
    assert (await container.is_paused(), container.is_running) == (True, True)
    await container.resume()
    assert not await container.is_paused()
    await container.pause()
    await container.kill()
    assert not await container.is_paused()
    await container.pause()
    assert not await container.is_paused(), "what has ended cannot be"


async def test_next_agent_adopts_the_container(runtime: SimulatedRuntime, sandbox: PodSandbox) -> None:
    container = await started(runtime, sandbox, stdin=True)
    await container.pause()
    later = SimulatedRuntime(runtime.directory)
    assert await later.pods() == {"one"}
    found = await later.adopt(sandbox, "main")
    assert found is not None and found.spec == container.spec
    assert (found.is_running, await found.is_paused()) == (True, True)
    await found.signal(signal.SIGTERM)

    last = await SimulatedRuntime(runtime.directory).adopt(sandbox, "main")
    assert last is not None and not last.is_running
    assert (await last.wait()).code == 143
    await last.delete()
    assert await later.adopt(sandbox, "main") is None
    await later.close_pod(sandbox)
    assert await later.pods() == set()


async def test_adopting_twice_returns_the_same_container(runtime: SimulatedRuntime, sandbox: PodSandbox) -> None:
    """Otherwise one caller would wait for an end that another has caused."""
    container = await started(runtime, sandbox)
    assert await runtime.adopt(sandbox, "main") is container


async def test_container_that_was_never_started_is_not_adopted(runtime: SimulatedRuntime, sandbox: PodSandbox) -> None:
    await runtime.open_pod(sandbox)
    await runtime.create(sandbox, ContainerSpec("main", ("sleep", "1")))
    assert await SimulatedRuntime(runtime.directory).adopt(sandbox, "main") is None
    assert await runtime.adopt(sandbox, "other") is None


async def _runs(container: SimulatedContainer) -> bool:
    return container.is_running
