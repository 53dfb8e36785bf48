"""A sandbox and its commands reach nothing of the host and of other sandboxes."""

from __future__ import annotations

import ast
import json
import os
import re
from typing import Any

import pytest

from sandpool.node.runtimes.process_tracker import inner_pid
from sandpool.node.runtimes.runtime import Bind, Container
from tests.support.escape.neighbourhood import Neighbourhood
from tests.support.isolation import Rig

pytestmark = pytest.mark.isolation

# The user inside. Root is the one who might have kept something.
USERS = {"root": 0, "user": 1000}


async def other_sandbox(boxes: Rig, neighbours: Neighbourhood) -> Container:
    """A second sandbox with secrets in memory and on the host's disk."""
    pod = await boxes.pod()
    for path in (neighbours.volume, *neighbours.volume.iterdir()):
        os.chown(path, pod.host_uid, pod.host_gid)
        path.chmod(0o700 if path.is_dir() else 0o600)
    return await boxes.start("sleep", "1000", pod=pod, mounts=(Bind(neighbours.volume, "/data"),))


# What a kernel of the sandbox's own may say of itself, and nothing more. None of this is the host's: what looks like it
# is shown to be another in tests/node/runtimes/test_gvisor.py.
ITS_OWN = {
    "settings_of_the_kernel_are_written": r"/proc/sys/.*",
    "controls_of_the_machine_are_open": r"/proc/sysrq-trigger",
    "devices_are_open": r"(/dev/(fuse|stdin|net/tun|char/10:(200|229))(; )?)+",
    "the_user_is_root_of_the_host": r"owner of /proc/sys",
    "other_users_are_mapped": r"uid_map .*",
    "precedence_is_taken": r"(not to be killed when memory runs out)?(; )?(priority)?",
    "families_of_sockets_that_are_not_confined": r"NETLINK_KOBJECT_UEVENT",
    "namespaces_are_made": r"clone3 user",
}


def leaks(output: str, boxes: Rig) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(output)
    assert len(found) > 20, "the probes did not run"
    harmless = ITS_OWN if boxes.has_own_kernel else {}
    assert harmless.keys() <= found.keys()
    return {
        name: what
        for name, what in found.items()
        if what is not None and not (name in harmless and re.fullmatch(harmless[name], what))
    }


@pytest.mark.parametrize("network", ["alone", "pod"])
@pytest.mark.parametrize("uid", USERS.values(), ids=USERS.keys())
async def test_container_is_confined(boxes: Rig, neighbours: Neighbourhood, uid: int, network: str) -> None:
    await other_sandbox(boxes, neighbours)
    alone = network == "alone"
    pod = await boxes.pod(netns=None if alone else boxes.network())
    argv = neighbours.with_facts(network_is_own=alone).argv()
    result, output, errors = await boxes.run(*argv, pod=pod, uid=uid, gid=uid)
    assert result.code == 0, errors
    assert leaks(output, boxes) == {}
    assert os.listdir(neighbours.writable) == []


@pytest.mark.parametrize("uid", USERS.values(), ids=USERS.keys())
async def test_command_in_a_container_is_confined(boxes: Rig, neighbours: Neighbourhood, uid: int) -> None:
    await other_sandbox(boxes, neighbours)
    container = await boxes.start("sleep", "1000", pod=await boxes.pod(netns=boxes.network()), uid=uid, gid=uid)
    code, output = await boxes.execute(container, *neighbours.argv())
    assert code == 0, output
    assert leaks(output, boxes) == {}
    assert os.listdir(neighbours.writable) == []


async def test_command_is_as_confined_as_its_container(boxes: Rig) -> None:
    """Whatever no probe looks for: all the kernel says about the two is the same."""
    container = await boxes.start("cat", stdin=True)
    assert container.pid is not None
    program = 1 if boxes.has_own_kernel else inner_pid(container.pid)
    alike = ("Uid", "Gid", "Groups", "Cap", "NoNewPrivs", "Seccomp:", "Speculation")

    async def shown(pid: str) -> list[str]:
        script = f"readlink /proc/{pid}/ns/*; cat /proc/{pid}/cgroup /proc/{pid}/limits; cat /proc/{pid}/status"
        _, output = await boxes.execute(container, "sh", "-c", script)
        before, _, status = output.partition("Name:\t")
        return [*before.splitlines(), *(line for line in status.splitlines() if line.startswith(alike))]

    of_command, of_program = await shown("$$"), await shown(str(program))
    assert len(of_command) >= 40
    assert of_command == of_program


SPY = """
import os, sys, time
seen, found = set(), set()
until = time.monotonic() + 300
print("watching", flush=True)
while not os.path.exists("/tmp/enough") and time.monotonic() < until:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if pid in ("1", "2") or int(pid) == os.getpid():
            continue
        seen.add(pid)
        for name in ("environ", "maps", "mem", "auxv"):
            try:
                with open(f"/proc/{pid}/{name}", "rb") as file:
                    text = file.read(65536) if name != "mem" else b""
                if b"launcher" in text or b"python" in text or b"ctypes" in text:
                    found.add(name)
            except OSError:
                pass
        for name in ("exe", "root", "cwd"):
            try:
                if "python" in os.readlink(f"/proc/{pid}/{name}"):
                    found.add(name)
            except OSError:
                pass
        # In the moment of its execution root in here can list which numbers there are. What is behind one that the
        # command has not opened itself, which is 3 at most, must not be seen.
        try:
            numbers = [number for number in os.listdir(f"/proc/{pid}/fd") if int(number) > 3]
        except OSError:
            continue
        for number in numbers:
            try:
                os.readlink(f"/proc/{pid}/fd/{number}")
                found.add("fd")
            except OSError:
                pass
print("saw", len(seen) > 5, "found", sorted(found), flush=True)
"""


@pytest.mark.parametrize(
    ("command", "seen"),
    [(("sleep", "0.02"), []), (("python3", "-c", "import time; time.sleep(0.1)"), ["environ", "exe", "maps"])],
    ids=["launcher", "canary"],
)
async def test_command_cannot_be_inspected_before_it_is_executed(
    boxes: Rig, command: tuple[str, ...], seen: list[str]
) -> None:
    """Before its execution the process is the launcher, with the memory and files of root, inside the sandbox. The spy
    looks for a Python process and must find only the sandbox's own."""
    container = await boxes.start("python3", "-c", SPY, uid=0, gid=0, env={"LC_ALL": "C.UTF-8"})
    await boxes.output_of(container).until("watching")
    for _ in range(10 if boxes.has_own_kernel else 30):
        await boxes.execute(container, *command, env={"PATH": "/usr/bin:/bin", "IT_IS": "python"} if seen else None)
    await boxes.execute(container, "touch", "/tmp/enough")
    output = await boxes.output_of(container).until("found")
    _, saw, _, found = output.splitlines()[-1].split(" ", 3)
    assert saw == "True"
    assert found == "[]" if not seen else set(seen) <= set(ast.literal_eval(found))


async def test_containers_of_a_pod_do_not_see_each_others_processes(boxes: Rig, neighbours: Neighbourhood) -> None:
    """They have the same user and share volumes, but not what they keep in memory."""
    pod = await boxes.pod()
    await boxes.start("sh", "-c", f"exec sleep 1000 {neighbours.facts['mark']} || sleep 1000", pod=pod, name="one")
    _, output, _ = await boxes.run("sh", "-c", "cat /proc/*/cmdline | tr '\\0' ' '", pod=pod, name="two")
    assert "sleep" not in output
