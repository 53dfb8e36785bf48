"""A kernel between the sandbox and the host: that it is there, and that it is confined itself."""

from __future__ import annotations

import asyncio
import os
import platform
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandpool.node.cgroups.limits import Limits
from sandpool.node.launcher.bundle import ROOTS
from sandpool.node.runtimes.gvisor import RUNSC_PATH, GvisorContainer, GvisorRuntime
from sandpool.node.runtimes.runtime import Bind, Command, Stdio
from tests.support.isolation import NotHere, Rig, rig

pytestmark = [pytest.mark.isolation, pytest.mark.built]


@pytest.fixture
async def boxes() -> AsyncIterator[Rig]:
    try:
        async with rig(GvisorRuntime) as made:
            yield made
    except NotHere as missing:
        pytest.skip(str(missing))


def text(path: str) -> str:
    return Path(path).read_text()


async def test_missing_runsc_is_reported(boxes: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUNSC_PATH, "/no/such/runsc")
    assert await boxes.runtime.probe() == "runsc is not installed"


async def test_kernel_is_not_that_of_the_host(boxes: Rig) -> None:
    """Changes by root inside do not affect the host."""
    setting = "/proc/sys/fs/pipe-max-size"
    before = text(setting)
    _, output, errors = await boxes.run("sh", "-c", f"uname -r; echo 65536 > {setting}", uid=0, gid=0)
    assert output.strip() != platform.release(), errors
    assert text(setting) == before


async def test_kernel_is_confined_on_the_host(boxes: Rig) -> None:
    """On the host it is a process like any other of a sandbox: filtered, in namespaces, and unprivileged."""
    pod = await boxes.pod()
    container = await boxes.start("sleep", "1000", pod=pod)
    assert container.pid is not None
    lines = text(f"/proc/{container.pid}/status").splitlines()
    fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    assert set(fields["Uid"].split()) == {str(ROOTS + pod.host_uid)}
    assert (fields["Seccomp"], fields["NoNewPrivs"]) == ("2", "1")
    for name in ("user", "mnt", "pid", "net", "ipc", "uts"):
        assert os.readlink(f"/proc/{container.pid}/ns/{name}") != os.readlink(f"/proc/self/ns/{name}")
    assert os.listdir(f"/proc/{container.pid}/root") in (["etc", "proc"], ["proc", "etc"], ["proc"])


async def test_killed_command_is_gone_inside(boxes: Rig) -> None:
    """Not only the call that waits for it."""
    container = await boxes.start("sleep", "1000")
    nothing = os.open("/dev/null", os.O_RDWR)
    process = await container.execute(Command(("sleep", "777")), Stdio(nothing, nothing, nothing))
    os.close(nothing)
    assert "sleep 777" in (await boxes.execute(container, "ps", "-eo", "args"))[1]
    await process.signal(signal.SIGKILL)
    assert await process.wait() == 137
    assert "sleep 777" not in (await boxes.execute(container, "ps", "-eo", "args"))[1]


async def test_cancelled_command_leaves_no_process(boxes: Rig) -> None:
    """Whenever that is: the call takes a while until it knows which process it has made."""
    container = await boxes.start("sleep", "1000")
    nothing = os.open("/dev/null", os.O_RDWR)
    stdio = Stdio(nothing, nothing, nothing)
    for rounds in (1, 2, 1000):
        execution = asyncio.create_task(container.execute(Command(("sleep", "777")), stdio))
        for _ in range(rounds):
            await asyncio.sleep(0)
        execution.cancel()
        await asyncio.gather(execution, return_exceptions=True)
    os.close(nothing)
    assert isinstance(container, GvisorContainer)
    while unwanted := list(container._ending):
        await asyncio.wait(unwanted)
    assert "sleep 777" not in (await boxes.execute(container, "ps", "-eo", "args"))[1]


async def test_command_has_a_terminal(boxes: Rig) -> None:
    container = await boxes.start("sleep", "1000")
    ours, theirs = container.open_terminal()
    script = "test -t 0 && test -c /dev/tty && stty size && read x && echo got $x"
    process = await container.execute(Command(("sh", "-c", script), tty=True), Stdio(theirs, theirs, theirs))
    os.close(theirs)
    os.write(ours, b"word\n")
    assert await process.wait() == 0
    os.set_blocking(ours, False)
    said = os.read(ours, 4096).decode()
    os.close(ours)
    assert "24 80" in said and "got word" in said


async def test_volume_writes_are_visible_to_other_containers_at_once(boxes: Rig) -> None:
    """Two kernels share one volume: neither may cache files."""
    pod = await boxes.pod()
    volume = pod.directory / "volume"
    volume.mkdir()
    os.chown(volume, pod.host_uid, pod.host_gid)
    mounts = (Bind(volume, "/data"),)
    one = await boxes.start("sleep", "1000", pod=pod, name="one", mounts=mounts)
    two = await boxes.start("sleep", "1000", pod=pod, name="two", mounts=mounts)
    for word in ("first", "second"):
        assert (await boxes.execute(one, "sh", "-c", f"echo {word} > /data/file"))[0] == 0
        assert await boxes.execute(two, "cat", "/data/file") == (0, f"{word}\n")
        assert (volume / "file").read_text() == f"{word}\n"


async def test_pids_limit_is_enforced_without_ending_the_kernel(boxes: Rig) -> None:
    """A program beyond the limit gets an error: the limit of the cgroup would end the kernel instead."""
    script = "import os\nn = 0\nwhile os.fork(): n += 1\nos._exit(0)"
    limits = Limits(pids=24, memory=512 << 20)
    result, _, errors = await boxes.run("python3", "-c", script, limits=limits)
    assert result.code == 1 and "BlockingIOError" in errors


async def test_idle_container_uses_no_cpu(boxes: Rig) -> None:
    container = await boxes.start("sleep", "1000")
    before = (await container.usage()).cpu_nanoseconds
    await asyncio.sleep(1.0)
    assert (await container.usage()).cpu_nanoseconds - before < 20_000_000


async def test_command_of_a_killed_kernel_ends_as_killed(boxes: Rig) -> None:
    container = await boxes.start("sleep", "1000")
    assert container.pid is not None
    command = asyncio.create_task(boxes.execute(container, "sh", "-c", "touch /tmp/here; exec sleep 1000"))
    while (await boxes.execute(container, "test", "-e", "/tmp/here"))[0] != 0:
        assert not command.done()
    os.kill(container.pid, signal.SIGKILL)
    assert (await command)[0] == 137


async def test_command_can_exit_with_the_codes_of_runsc(boxes: Rig) -> None:
    container = await boxes.start("sleep", "1000")
    assert (await boxes.execute(container, "sh", "-c", "exit 128"))[0] == 128
