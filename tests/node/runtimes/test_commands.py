"""Commands in containers that run, and the exec agents that start them."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from sandpool.node.cgroups.limits import Limits
from sandpool.node.descriptors import readable
from sandpool.node.runtimes.container import LaunchedContainer
from sandpool.node.runtimes.process_tracker import depth, owner
from sandpool.node.runtimes.runtime import Command, Container, NotExecutable, RuntimeFailure, Stdio
from sandpool.testing.waiting import until
from tests.support.isolation import Rig, alive

pytestmark = pytest.mark.isolation


def exec_agents(container: Container) -> list[int]:
    """The processes of the container that are in no PID namespace of its own, and are not root's."""
    assert isinstance(container, LaunchedContainer)
    found = []
    for pid in container.cgroup.processes():
        with suppress(OSError):
            program = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
            if depth(pid) == 1 and owner(pid) != 0 and program.startswith("python"):
                found.append(pid)
    return found


def shown(pid: int, name: str) -> str:
    """Return the kernel's status of a process; nothing if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_text()
    return ""


def is_run(container: Container, word: str) -> bool:
    """Whether there is a process in it that was called with this word."""
    assert isinstance(container, LaunchedContainer)
    return any(word in shown(pid, "cmdline") for pid in container.cgroup.processes())


@pytest.fixture(autouse=True)
def is_entered(boxes: Rig) -> None:
    if boxes.has_own_kernel:
        pytest.skip("no exec agent enters a container with its own kernel")


async def test_one_exec_agent_serves_all_commands(boxes: Rig) -> None:
    container = await boxes.start("sleep", "100")
    assert exec_agents(container) == []
    await boxes.execute(container, "true")
    (agent,) = exec_agents(container)
    for number in range(5):
        assert await boxes.execute(container, "sh", "-c", f"exit {number}") == (number, "")
    assert exec_agents(container) == [agent]


async def test_exec_agent_is_confined_and_invisible(boxes: Rig) -> None:
    container = await boxes.start("sleep", "100", uid=0, gid=0)
    _, seen = await boxes.execute(container, "sh", "-c", "cat /proc/[0-9]*/comm")
    assert "python" not in seen and "sleep" in seen
    (agent,) = exec_agents(container)
    status = dict(line.split(":\t", 1) for line in shown(agent, "status").splitlines() if ":\t" in line)
    for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb"):
        assert status[f"Cap{kind}"] == "0" * 16
    assert (status["NoNewPrivs"], status["Seccomp"], status["Groups"].strip()) == ("1", "2", "")
    # Files of a process that cannot be inspected are shown as owned by root.
    assert os.stat(f"/proc/{agent}/environ").st_uid == 0
    for name in ("user", "mnt", "net", "uts", "ipc", "cgroup"):
        assert os.readlink(f"/proc/{agent}/ns/{name}") == os.readlink(f"/proc/{container.pid}/ns/{name}")
    children = os.readlink(f"/proc/{agent}/ns/pid_for_children")
    assert children == os.readlink(f"/proc/{container.pid}/ns/pid")
    assert container.pid is not None and shown(agent, "cgroup") == shown(container.pid, "cgroup")


async def test_command_has_only_its_own_descriptors(boxes: Rig) -> None:
    container = await boxes.start("sleep", "100")
    for _ in range(2):
        # The fourth is the directory that is being listed.
        assert await boxes.execute(container, "ls", "/proc/self/fd") == (0, "0\n1\n2\n3\n")
    script = "grep -E 'Sig(Blk|Ign)' /proc/self/status; ps -o sid=,pgid= -p $$; echo $$ $$; umask"
    _, said = await boxes.execute(container, "sh", "-c", script)
    blocked, ignored, session, pid, mask = said.splitlines()
    assert (blocked.split()[1], ignored.split()[1]) == ("0" * 16, "0" * 16)
    assert session.split() == pid.split()
    assert mask == "0022"


async def test_more_commands_than_descriptors_use_several_exec_agents(boxes: Rig) -> None:
    container = await boxes.start("sleep", "100", nofile=40, limits=Limits(pids=512))
    names = [f"/tmp/{number}" for number in range(60)]
    script = "touch $0; until test -e /tmp/all; do sleep 0.1; done; exit 3"
    running = [asyncio.create_task(boxes.execute(container, "sh", "-c", script, name)) for name in names]
    _, said = await boxes.execute(container, "sh", "-c", f"until test -e {names[-1]}; do sleep 0.1; done; echo there")
    assert said == "there\n"
    await boxes.execute(container, "touch", "/tmp/all")
    assert await asyncio.gather(*running) == [(3, "")] * len(names)


async def test_descriptors_of_a_command_are_closed_after_its_start(boxes: Rig) -> None:
    """The reader of its output sees the end of file."""
    container = await boxes.start("sleep", "100")
    reader, writer = os.pipe()
    nothing = os.open("/dev/null", os.O_RDWR)
    process = await container.execute(Command(("true",)), Stdio(nothing, writer, nothing))
    os.close(writer)
    os.close(nothing)
    assert await process.wait() == 0
    os.set_blocking(reader, False)
    assert os.read(reader, 1) == b""
    os.close(reader)


async def test_large_environment_of_a_command_is_passed(boxes: Rig) -> None:
    container = await boxes.start("sleep", "100")
    env = {"PATH": "/usr/bin:/bin", "LONG": "x" * 100_000}
    assert await boxes.execute(container, "sh", "-c", "echo ${#LONG}", env=env) == (0, "100000\n")


@pytest.mark.parametrize("env", [{"A": "b\0c"}, {"A\0": "b"}, {"A=B": "c"}])
async def test_invalid_variables_are_rejected(boxes: Rig, env: dict[str, str]) -> None:
    container = await boxes.start("sleep", "100")
    with pytest.raises(RuntimeFailure, match=r"zero byte|equals sign"):
        await boxes.execute(container, "/bin/true", env=env)
    with pytest.raises(RuntimeFailure, match="zero byte"):
        await boxes.execute(container, "/bin/echo", "a\0b")


async def test_path_is_searched_as_by_a_shell(boxes: Rig) -> None:
    container = await boxes.start("sleep", "100", cwd="/tmp")
    script = "mkdir -p a b; echo x > a/tool; printf '#!/bin/sh\\necho found $0\\n' > b/tool; chmod +x b/tool"
    assert await boxes.execute(container, "sh", "-c", script) == (0, "")
    env = {"PATH": "/tmp/none:/tmp/a:b:/usr/bin"}
    assert await boxes.execute(container, "tool", env=env) == (0, "found b/tool\n")
    assert await boxes.execute(container, "b/tool", env=env) == (0, "found b/tool\n")
    with pytest.raises(NotExecutable, match="denied"):
        await boxes.execute(container, "tool", env={"PATH": "/tmp/a"})


async def test_cancelled_command_leaves_no_process(boxes: Rig) -> None:
    container = await boxes.start("sleep", "100")
    nothing = os.open("/dev/null", os.O_RDWR)
    for _ in range(3):
        execution = asyncio.create_task(container.execute(Command(("sleep", "1234")), Stdio(nothing, nothing, nothing)))
        await asyncio.sleep(0)
        execution.cancel()
        await asyncio.gather(execution, return_exceptions=True)
        # One after the other: what was asked for before this has begun when this has.
        assert await boxes.execute(container, "true") == (0, "")
    os.close(nothing)

    async def ended() -> bool:
        return not is_run(container, "1234")

    await until(ended)


async def test_killed_exec_agent_is_replaced(boxes: Rig) -> None:
    container = await boxes.start("sleep", "100")
    await boxes.execute(container, "true")
    (agent,) = exec_agents(container)
    pidfd = os.pidfd_open(agent)
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    await readable(pidfd)
    os.close(pidfd)
    assert await boxes.execute(container, "echo", "again") == (0, "again\n")
    assert exec_agents(container) != [agent]


async def test_exec_agent_ends_with_its_container(boxes: Rig) -> None:
    pod = await boxes.pod()
    container = await boxes.start("sleep", "100", pod=pod)
    await boxes.execute(container, "true")
    await container.kill()
    assert alive(pod) == []


async def test_exec_agent_is_paused_with_its_container(boxes: Rig) -> None:
    pod = await boxes.pod()
    container = await boxes.start("sleep", "100", pod=pod)
    await boxes.execute(container, "true")
    await container.pause()
    with pytest.raises(RuntimeFailure, match="paused"):
        await boxes.execute(container, "true")
    await container.resume()
    assert await boxes.execute(container, "echo", "on") == (0, "on\n")
    await container.pause()
    await container.delete()
    assert alive(pod) == []


BOMB = """
import os, time
input()
try:
    while os.fork():
        pass
except OSError:
    print("full", flush=True)
time.sleep(1000)
"""


async def test_exhausted_pids_limit_is_reported(boxes: Rig) -> None:
    limits = Limits(pids=16, memory=64 << 20)
    container = await boxes.start("python3", "-c", BOMB, limits=limits, stdin=True)
    await boxes.execute(container, "true")
    stdin = os.open(container.directory / "stdin", os.O_WRONLY)
    os.write(stdin, b"now\n")
    os.close(stdin)
    await boxes.output_of(container).until("full")
    with pytest.raises(RuntimeFailure, match="no process can be started: Resource temporarily unavailable"):
        await boxes.execute(container, "true")
