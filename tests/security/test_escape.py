"""Nothing of the host and of other sandboxes can be had from inside a sandbox, nor by a command executed in one."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from sandpool.node.runtimes.runtime import Bind, Container
from sandpool.node.runtimes.trace import inner_pid
from sandpool.testing.escape.neighbourhood import Neighbourhood
from sandpool.testing.isolation import Rig

pytestmark = pytest.mark.isolation

# The user inside. Root is the one who might have kept something.
USERS = {"root": 0, "user": 1000}


async def other_sandbox(boxes: Rig, neighbours: Neighbourhood) -> Container:
    """One that has something to hide, and what it hides on the host's disk."""
    pod = await boxes.pod()
    for path in (neighbours.volume, *neighbours.volume.iterdir()):
        os.chown(path, pod.host_uid, pod.host_gid)
        path.chmod(0o700 if path.is_dir() else 0o600)
    return await boxes.start("sleep", "1000", pod=pod, mounts=(Bind(neighbours.volume, "/data"),))


def leaks(output: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(output)
    assert len(found) > 20, "the probes did not run"
    return {name: what for name, what in found.items() if what is not None}


@pytest.mark.parametrize("network", ["alone", "pod"])
@pytest.mark.parametrize("uid", USERS.values(), ids=USERS.keys())
async def test_the_program_of_a_container_is_confined(
    boxes: Rig, neighbours: Neighbourhood, uid: int, network: str
) -> None:
    await other_sandbox(boxes, neighbours)
    alone = network == "alone"
    pod = await boxes.pod(netns=None if alone else boxes.network())
    argv = neighbours.with_facts(network_is_own=alone).argv()
    result, output, errors = await boxes.run(*argv, pod=pod, uid=uid, gid=uid)
    assert result.code == 0, errors
    assert leaks(output) == {}
    assert os.listdir(neighbours.writable) == []


@pytest.mark.parametrize("uid", USERS.values(), ids=USERS.keys())
async def test_a_command_in_a_container_is_confined_as_well(boxes: Rig, neighbours: Neighbourhood, uid: int) -> None:
    await other_sandbox(boxes, neighbours)
    container = await boxes.start("sleep", "1000", pod=await boxes.pod(netns=boxes.network()), uid=uid, gid=uid)
    code, output = await boxes.execute(container, *neighbours.argv())
    assert code == 0, output
    assert leaks(output) == {}
    assert os.listdir(neighbours.writable) == []


async def test_a_command_looks_like_the_program_from_inside(boxes: Rig) -> None:
    """Whatever no probe looks for: all the kernel says about the two is the same."""
    container = await boxes.start("cat", stdin=True)
    assert container.pid is not None
    program = inner_pid(container.pid)
    alike = ("Uid", "Gid", "Groups", "Cap", "NoNewPrivs", "Seccomp:", "Speculation")

    async def shown(pid: str) -> list[str]:
        script = f"readlink /proc/{pid}/ns/*; cat /proc/{pid}/cgroup /proc/{pid}/limits; cat /proc/{pid}/status"
        _, output = await boxes.execute(container, "sh", "-c", script)
        before, _, status = output.partition("Name:\t")
        return [*before.splitlines(), *(line for line in status.splitlines() if line.startswith(alike))]

    of_command, of_program = await shown("$$"), await shown(str(program))
    assert len(of_command) > 40
    assert of_command == of_program


async def test_containers_of_a_pod_do_not_see_each_others_processes(boxes: Rig, neighbours: Neighbourhood) -> None:
    """They have the same user and share volumes, but not what they keep in memory."""
    pod = await boxes.pod()
    await boxes.start("sh", "-c", f"exec sleep 1000 {neighbours.facts['mark']} || sleep 1000", pod=pod, name="one")
    _, output, _ = await boxes.run("sh", "-c", "cat /proc/*/cmdline | tr '\\0' ' '", pod=pod, name="two")
    assert "sleep" not in output
