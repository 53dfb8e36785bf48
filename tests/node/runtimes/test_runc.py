"""runc: accepted versions, unchanged cgroups, and no process that stays."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from glob import glob
from pathlib import Path

import pytest

from sandpool.engine.clock import SystemClock
from sandpool.node.cgroups.limits import Limits
from sandpool.node.runtimes.container import LaunchedContainer
from sandpool.node.runtimes.oci import RUNC_PATH, RuncRuntime
from sandpool.node.runtimes.runtime import Container
from sandpool.testing.waiting import until
from tests.support.isolation import NotHere, Rig, rig

pytestmark = [pytest.mark.isolation, pytest.mark.built]

# Uses up what processes it may have, and ends when it is told to.
BOMB = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
try:
    while True:
        if os.fork() == 0:
            time.sleep(1000)
except OSError:
    print("full", flush=True)
    time.sleep(1000)
"""


@pytest.fixture
async def boxes() -> AsyncIterator[Rig]:
    try:
        async with rig(RuncRuntime) as made:
            yield made
    except NotHere as missing:
        pytest.skip(str(missing))


def text(path: str) -> str:
    return Path(path).read_text()


def hierarchies() -> set[str]:
    """Every cgroup of the machine but those of other tests."""
    return {path for path in glob("/sys/fs/cgroup/**/", recursive=True) if "sandpool" not in path}


def names_of(container: Container) -> list[str]:
    assert isinstance(container, LaunchedContainer)
    found = []
    for pid in container.cgroup.processes():
        with suppress(OSError):  # it has ended
            found.append(text(f"/proc/{pid}/comm").strip())
    return found


@pytest.fixture
async def runtime() -> AsyncIterator[RuncRuntime]:
    """On a machine that need not have it."""
    async with rig() as made:
        yield RuncRuntime(made.cgroups, made.launcher, SystemClock(), directory=made.directory)


async def test_missing_runc_is_reported(runtime: RuncRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUNC_PATH, "/no/such/runc")
    assert await runtime.probe() == "runc is not installed"


@pytest.mark.parametrize("version", ["1.1.5+ds1", "1.2.7", "1.3.0", "1.3.2", "1.4.0-rc.2"])
async def test_vulnerable_runc_is_rejected(
    runtime: RuncRuntime, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUNC_PATH, str(one_that_says(tmp_path, version)))
    told = await runtime.probe()
    assert told is not None and told.startswith(f"runc {version} lets images escape (CVE-2025-31133, ")
    assert "install 1.2.8, 1.3.3 or later" in told


@pytest.mark.parametrize("version", ["1.2.8", "1.2.10", "1.3.3", "1.4.0-rc.3", "1.4.0", "1.5.2", "1.6.0-rc.1", "2.0.0"])
async def test_repaired_runc_is_accepted(
    runtime: RuncRuntime, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUNC_PATH, str(one_that_says(tmp_path, version)))
    assert runtime.find_binary().program == "runc"


async def test_runc_without_a_version_is_rejected(
    runtime: RuncRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It still says which version of the specification it follows."""
    monkeypatch.setenv(RUNC_PATH, str(one_that_says(tmp_path, "unknown")))
    assert await runtime.probe() == f"{tmp_path}/runc does not say its version"


def one_that_says(directory: Path, version: str) -> Path:
    program = directory / "runc"
    program.write_text(f"#!/bin/sh\necho runc version {version}\necho spec: 1.4.0\n")
    program.chmod(0o755)
    return program


async def test_runc_creates_no_cgroups(boxes: Rig) -> None:
    before = hierarchies()
    pod = await boxes.pod()
    # One is called what runc would call a cgroup, if it made one beside the container's.
    names = ("main", "sandbox")
    for name in names:
        container = await boxes.start("sleep", "1000", pod=pod, name=name)
        assert container.pid is not None
        lines = text(f"/proc/{container.pid}/cgroup").splitlines()
        paths = {line.split(":", 2)[2] for line in lines}
        assert paths <= {f"/{boxes.name}/{pod.uid}/{name}", *own_cgroups()}
    made = glob(f"/sys/fs/cgroup/**/{boxes.name}/**/", recursive=True)
    assert {os.path.basename(path.rstrip("/")) for path in made} == {boxes.name, pod.uid, *names}
    assert hierarchies() - before == set()


def own_cgroups() -> set[str]:
    """Return cgroups of unused hierarchies, where a container stays in the cgroup of the node."""
    return {line.split(":", 2)[2] for line in text("/proc/self/cgroup").splitlines()}


async def test_runc_does_not_keep_running(boxes: Rig) -> None:
    """Its threads would count as the container's processes."""
    container = await boxes.start("sleep", "1000")

    async def has_only_those() -> bool:
        """Poll: runc ends soon after the start, and the kernel counts ended processes for a moment longer."""
        names = names_of(container)
        return len(names) == 2 and "runc" not in names and (await container.usage()).pids == 2

    await until(has_only_those)


async def test_runc_starts_a_container_with_few_pids(boxes: Rig) -> None:
    """The extra processes that runc needs to start do not raise the limit of the container."""
    container = await boxes.start("sleep", "1000", limits=Limits(pids=4))
    assert isinstance(container, LaunchedContainer)
    limits = glob(f"/sys/fs/cgroup/**/{container.cgroup.path}/pids.max", recursive=True)
    assert [text(path) for path in limits] == ["4\n"]


async def test_container_with_exhausted_pids_can_be_stopped(boxes: Rig) -> None:
    container = await boxes.start("python3", "-c", BOMB, limits=Limits(pids=16))
    await boxes.output_of(container).until("full")
    await container.signal(signal.SIGTERM)
    assert (await container.wait()).code == 7
