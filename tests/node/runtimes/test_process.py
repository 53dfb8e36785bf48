"""The runtime that isolates nothing does the rest of what a runtime does, and refuses what it cannot do."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from sandpool.engine.clock import SystemClock
from sandpool.node.cgroups.environment_groups import VARIABLE, EnvironmentGroups
from sandpool.node.cgroups.limits import Limits
from sandpool.node.launcher.client import LauncherClient
from sandpool.node.runtimes import stdin_once
from sandpool.node.runtimes.process import ProcessRuntime, home_of
from sandpool.node.runtimes.runtime import Bind, ImageLayers, NoSuchCommand, PodSandbox, RuntimeFailure
from tests.support.isolation import RUNTIMES, Rig, rig


@pytest.fixture(params=[pytest.param("cgroups", marks=pytest.mark.isolation), "marks"])
async def boxes(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    """With root, users and cgroups; and with the permissions of an ordinary user."""
    if request.param == "cgroups":
        async with rig(ProcessRuntime) as made:
            os.chmod(made.directory, 0o711)
            yield made
        return
    with TemporaryDirectory() as name:
        directory = Path(name)
        os.chmod(directory, 0o711)  # the self-test has a user of its own if it can
        launcher, marks = LauncherClient(), EnvironmentGroups(directory / "processes")
        runtime = ProcessRuntime(marks, launcher, SystemClock(), directory=directory)
        made = Rig("marks", directory, marks, launcher, runtime)  # type: ignore[arg-type]
        made.uids = range(os.geteuid(), os.geteuid() + 1)
        yield made
        await made.close()
        assert marks.group().processes() == []
        launcher.close()


async def test_probe_succeeds(boxes: Rig) -> None:
    assert await boxes.runtime.probe() is None


def test_process_runtime_is_not_listed_as_isolating() -> None:
    """The escape suite and the node's default use that list."""
    assert not any(issubclass(kind, ProcessRuntime) for kind in RUNTIMES.values())


async def test_program_runs_in_its_own_directory_and_reports_its_end(boxes: Rig) -> None:
    script = "pwd; echo $HOME $BASE; cat; echo complaint >&2; exit 7"
    pod = await boxes.pod()
    result, output, errors = await boxes.run("sh", "-c", script, pod=pod, cwd="/not-there", env={"BASE": "/not-there"})
    home = home_of(pod, "main")
    assert (result.code, output, errors) == (7, f"{home}\n{home} {home}\n", "complaint\n")
    assert not home.exists()


async def test_environment_is_that_of_the_spec(boxes: Rig) -> None:
    _, output, _ = await boxes.run("env", env={"GIVEN": "yes"})
    names = {line.partition("=")[0] for line in output.splitlines()}
    assert names - {VARIABLE} == {"PATH", "HOME", "LANG", "GIVEN"}


async def test_missing_program_is_an_error(boxes: Rig) -> None:
    with pytest.raises(NoSuchCommand, match="not-there"):
        await boxes.start("/not-there")
    container = await boxes.start("sleep", "1000")
    with pytest.raises(NoSuchCommand, match="not-there"):
        await boxes.execute(container, "not-there")


async def test_command_runs_beside_the_program(boxes: Rig) -> None:
    container = await boxes.start("sleep", "1000", env={"GIVEN": "yes"})
    code, output = await boxes.execute(container, "sh", "-c", "echo $GIVEN; pwd; exit 3")
    assert (code, output) == (3, f"yes\n{home_of(container.pod, 'main')}\n")  # type: ignore[attr-defined]


async def test_signals_reach_the_program(boxes: Rig) -> None:
    container = await boxes.start("sh", "-c", "trap 'exit 5' TERM; echo up; while :; do sleep 0.01; done")
    await boxes.output_of(container).until("up")
    await container.signal(signal.SIGTERM)
    assert (await container.wait()).code == 5


async def test_container_can_be_paused(boxes: Rig) -> None:
    container = await boxes.start("sh", "-c", "sleep 1000 & wait")
    await container.pause()
    assert await container.is_paused()
    with pytest.raises(RuntimeFailure, match="paused"):
        await boxes.execute(container, "true")
    await container.resume()
    assert not await container.is_paused()
    assert (await boxes.execute(container, "true"))[0] == 0
    assert (await container.usage()).pids >= 2


async def test_kill_ends_all_processes(boxes: Rig) -> None:
    """Including processes that left the session, and commands; paused or not."""
    container = await boxes.start("sh", "-c", "setsid sleep 1000 & exec sleep 1000")
    await boxes.execute(container, "sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 &")
    await container.pause()
    await container.kill()
    assert (await container.wait()).code == 128 + signal.SIGKILL
    assert boxes.cgroups.group("pod-1", "main").processes() == []


async def test_background_processes_end_with_the_program(boxes: Rig) -> None:
    container = await boxes.start("sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & exit 0")
    assert (await container.wait()).code == 0
    assert boxes.cgroups.group("pod-1", "main").processes() == []


async def test_stdin_once_ends_with_the_first_client(boxes: Rig) -> None:
    container = await boxes.start("sh", "-c", "cat; echo at its end", stdin=True, stdin_once=True)
    boxes.launcher.close()  # what holds it open does not depend on who has started it
    stdin = stdin_once.take(container.directory)
    assert stdin is not None
    os.write(stdin, b"typed\n")
    os.close(stdin)
    stdin_once.end(container.directory)
    assert (await container.wait()).code == 0
    assert boxes.drain(container).stdout == b"typed\nat its end\n"
    assert boxes.cgroups.group("pod-1", "main").processes() == []


async def test_container_is_adopted_by_another_agent(boxes: Rig) -> None:
    container = await boxes.start("cat", stdin=True)
    pod: PodSandbox = container.pod  # type: ignore[attr-defined]
    boxes.launcher.close()
    found = await boxes.runtime.adopt(pod, "main")
    assert found is not None and found.pid == container.pid
    assert await boxes.runtime.pods() == {pod.uid}
    await found.signal(signal.SIGTERM)
    assert (await found.wait()).code == 128 + signal.SIGTERM
    await found.delete()


async def test_exit_code_is_kept_for_the_next_agent(boxes: Rig) -> None:
    container = await boxes.start("sh", "-c", "exit 4")
    await container.wait()
    found = await boxes.runtime.adopt(container.pod, "main")  # type: ignore[attr-defined]
    assert found is not None
    assert (await found.wait()).code == 4
    await found.delete()


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ({"mounts": (Bind(Path("/usr"), "/data"),)}, "/data"),
        ({"root": ImageLayers((Path("/usr"),))}, "built-in"),
        ({"read_only_root": True}, "read-only"),
    ],
)
async def test_unsupported_settings_are_rejected(boxes: Rig, wanted: dict[str, object], why: str) -> None:
    with pytest.raises(RuntimeFailure, match=why):
        await boxes.start("true", **wanted)  # type: ignore[arg-type]


async def test_optional_mounts_are_left_out(boxes: Rig) -> None:
    result, _, _ = await boxes.run("true", mounts=(Bind(Path("/usr"), "/data", optional=True),))
    assert result.code == 0


async def test_processes_are_marked_per_group(tmp_path: Path) -> None:
    """Not of one whose name begins alike, and a pod has those of its containers."""
    marks = EnvironmentGroups(tmp_path)
    one, other = marks.group("pod", "one"), marks.group("pod", "one-more")
    one.create(Limits())
    process = await asyncio.create_subprocess_exec("sleep", "1000", env={"PATH": os.defpath, VARIABLE: one.value})
    assert one.processes() == marks.group("pod").processes() == [process.pid]
    assert other.processes() == []
    await marks.group("pod").remove()
    assert await process.wait() == -signal.SIGKILL
    assert marks.group().children() == []
