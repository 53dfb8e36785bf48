"""The fake runtime keeps the contract of ``Runtime`` that pod workers rely on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandpool.node.runtimes.runtime import Command, ContainerSpec, Exit, Runtime, RuntimeFailure, Stdio
from tests.support.fake_runtime import FakeContainer, FakeRuntime, pod_sandbox

SPEC = ContainerSpec("main", ("sleep", "1"))
NOTHING = Stdio(0, 1, 2)


async def started(runtime: FakeRuntime, directory: Path) -> FakeContainer:
    pod = pod_sandbox(directory)
    await runtime.open_pod(pod)
    container = await runtime.create(pod, SPEC)
    await container.start()
    return container


async def test_container_runs_until_ended_and_can_be_adopted(tmp_path: Path) -> None:
    fake = FakeRuntime()
    runtime: Runtime = fake  # held by mypy: it is one
    container = await started(fake, tmp_path)
    assert await runtime.adopt(pod_sandbox(tmp_path), "main") is container
    container.end(3, oom_killed=True)
    assert await container.wait() == Exit(3, oom_killed=True)
    await container.delete()
    assert await runtime.adopt(pod_sandbox(tmp_path), "main") is None
    assert not container.directory.exists()


async def test_output_is_in_the_fifo(tmp_path: Path) -> None:
    container = await started(FakeRuntime(), tmp_path)
    container.say("hello\n", "stderr")
    reader = os.open(container.directory / "stderr", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert os.read(reader, 100) == b"hello\n"
    finally:
        os.close(reader)
    await container.delete()


async def test_commands_need_a_running_container_and_end_with_it(tmp_path: Path) -> None:
    runtime = FakeRuntime()
    container = await started(runtime, tmp_path)
    runtime.on_execute = lambda container, command, stdio: None
    process = await container.execute(Command(("sleep",)), NOTHING)
    await container.kill()
    assert await process.wait() == 137
    with pytest.raises(RuntimeFailure):
        await container.execute(Command(("sleep",)), NOTHING)
    await runtime.close_pod(container.pod)
    assert await runtime.pods() == set()


async def test_container_that_fails_to_start_does_not_exist(tmp_path: Path) -> None:
    runtime = FakeRuntime()

    def refuse(container: FakeContainer) -> None:
        raise RuntimeFailure("no")

    runtime.on_start = refuse
    with pytest.raises(RuntimeFailure):
        await started(runtime, tmp_path)
    assert await runtime.adopt(pod_sandbox(tmp_path), "main") is None
    assert runtime.started == []
    await runtime.close_pod(pod_sandbox(tmp_path))
