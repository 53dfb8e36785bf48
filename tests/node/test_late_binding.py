"""Late binding of real sandboxes: what commands see, and what a neighbour or the code inside can do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sandpool.api.resource import Object, SharedObject
from sandpool.kube.late_binding import PORT, BindingRefused, BindingUnavailable, BindRequest, LocalBinder
from sandpool.kube.pod_access import Size
from sandpool.testing.waiting import until
from tests.support.real_node import RealNode, real_node

pytestmark = [pytest.mark.isolation, pytest.mark.asyncio(loop_scope="module")]

RUNTIME = {
    "ports": [{"containerPort": 8888}],
    "readinessProbe": {"httpGet": {"path": "/", "port": 8888}, "periodSeconds": 1},
}
#: Sends a line to the binding port of an address and prints the answer, or why there is none.
ASK = """
import socket, sys
try:
    sock = socket.create_connection((sys.argv[1], %d), timeout=3)
    sock.sendall(sys.argv[2].encode() + b"\\n")
    print(sock.makefile().readline())
except OSError as error:
    print(type(error).__name__)
"""
EXECUTE = """
import json, sys, urllib.request
body = json.dumps({"command": sys.argv[1]}).encode()
print(json.load(urllib.request.urlopen(urllib.request.Request("http://127.0.0.1:8888/execute", body)))["stdout"])
"""


class Terminal:
    """The client of a command without input."""

    has_stdin, has_stdout, has_stderr = False, True, True

    def __init__(self, *, is_terminal: bool = False) -> None:
        self.is_terminal = is_terminal
        self.output = b""

    async def receive(self) -> bytes:
        await asyncio.get_running_loop().create_future()
        return b""

    async def write(self, data: bytes, *, error: bool = False) -> None:
        self.output += data

    async def next_size(self) -> Size | None:
        return None


class Rig:
    def __init__(self, node: RealNode) -> None:
        self.node = node
        self.pod_access = node.node.pod_access
        self.binder = LocalBinder(lambda: self.pod_access)

    async def pod(self, *command: str) -> SharedObject:
        return await self.node.ready(await self.node.create(*command, container={} if command else RUNTIME))

    async def bind(self, pod: SharedObject, claim: str = "claim-1", **values: str) -> None:
        await self.binder.bind(BindRequest(pod, claim, values))

    async def run(self, pod: SharedObject, *command: str, is_terminal: bool = False) -> str:
        client = Terminal(is_terminal=is_terminal)
        await self.pod_access.execute(pod, "main", command, client)
        return client.output.decode().strip()

    async def ask(self, pod: SharedObject, host: str, message: Object) -> str:
        """Ask the binding port of a host from inside a pod."""
        return await self.run(pod, "python3", "-c", ASK % PORT, host, json.dumps(message))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    async with real_node(Path(tmp_path_factory.mktemp("late-binding"))) as node:
        yield Rig(node)


def address(pod: SharedObject) -> str:
    found: str = pod["status"]["podIP"]
    return found


SHOW = ("sh", "-c", "echo $CANARY")


async def test_commands_of_all_kinds_see_the_variables(rig: Rig) -> None:
    pod = await rig.pod()
    assert await rig.run(pod, *SHOW) == ""
    await rig.bind(pod, CANARY="yellow")
    assert await rig.run(pod, *SHOW) == "yellow"
    assert await rig.run(pod, *SHOW, is_terminal=True) == "yellow"
    assert await rig.run(pod, "python3", "-c", EXECUTE, "echo $CANARY") == "yellow"
    assert "yellow" not in json.dumps(await rig.node.get(pod["metadata"]["name"]))


async def test_variables_are_not_in_the_environment_of_sandboxd(rig: Rig) -> None:
    pod = await rig.pod()
    await rig.bind(pod, CANARY="yellow")
    read = "import glob; print(*(p for p in glob.glob('/proc/[0-9]*/environ') if b'yel'+b'low' in open(p,'rb').read()))"
    own = await rig.run(pod, "python3", "-c", f"import os; print(os.getpid()); {read}")
    pid, _, found = own.partition("\n")
    assert found.split() == [f"/proc/{pid}/environ"], "only the command that was started afterwards"


async def test_another_claim_is_refused_and_the_same_one_is_acknowledged(rig: Rig) -> None:
    pod = await rig.pod()
    await rig.bind(pod, CANARY="yellow")
    await rig.bind(pod, CANARY="green")
    with pytest.raises(BindingRefused, match="another claim"):
        await rig.bind(pod, "claim-2", CANARY="blue")
    assert await rig.run(pod, *SHOW) == "yellow"


async def test_neighbour_can_neither_bind_nor_recall(rig: Rig) -> None:
    pod, neighbour = await rig.pod(), await rig.pod()
    theirs = {"bind": {"claim": "theirs", "pod": pod["metadata"]["uid"], "values": {"CANARY": "blue"}}}
    refused = ("ConnectionRefusedError", "TimeoutError")
    assert await rig.ask(neighbour, address(pod), theirs) in refused
    await rig.bind(pod, CANARY="yellow")
    for message in (theirs, {"recall": ""}):
        assert await rig.ask(neighbour, address(pod), message) in refused
    assert await rig.run(pod, *SHOW) == "yellow"


async def test_code_inside_can_neither_replay_nor_rebind_nor_recall(rig: Rig) -> None:
    pod = await rig.pod()
    await rig.bind(pod, CANARY="yellow")
    again = {"bind": {"claim": "claim-1", "pod": pod["metadata"]["uid"], "values": {"CANARY": "blue"}}}
    assert '"first": false' in await rig.ask(pod, "127.0.0.1", again)
    other = {"bind": {**again["bind"], "claim": "claim-2"}}
    assert "BoundToAnother" in await rig.ask(pod, "127.0.0.1", other)
    assert "Denied" in await rig.ask(pod, "127.0.0.1", {"recall": ""})
    assert "yellow" not in await rig.ask(pod, "127.0.0.1", {"recall": "0" * 32})
    assert await rig.run(pod, *SHOW) == "yellow"
    assert "CANARY" not in await rig.run(pod, "sh", "-c", "cat /run/*/* /tmp/* /app/* 2>/dev/null")


async def test_code_inside_that_binds_first_only_keeps_the_claim_out(rig: Rig) -> None:
    pod = await rig.pod()
    early = {"bind": {"claim": "guessed", "values": {"CANARY": "blue"}}}
    assert '"first": true' in await rig.ask(pod, "127.0.0.1", early)
    with pytest.raises(BindingRefused, match="another claim"):
        await rig.bind(pod, CANARY="yellow")
    assert await rig.run(pod, *SHOW) == "", "the node has not passed these values on"


async def test_sandbox_without_sandboxd_is_unavailable(rig: Rig) -> None:
    pod = await rig.pod("sleep", "infinity")
    with pytest.raises(BindingUnavailable):
        await rig.bind(pod, CANARY="yellow")


async def test_restarted_container_is_bound_again(rig: Rig) -> None:
    pod = await rig.pod()
    name = pod["metadata"]["name"]
    await rig.bind(pod, CANARY="yellow")
    await rig.run(pod, "sh", "-c", "kill -9 1 || kill -TERM 1; kill -TERM -1")

    async def restarted() -> bool:
        (status,) = (await rig.node.get(name))["status"]["containerStatuses"]
        return bool(status["restartCount"] == 1 and status["ready"])

    await until(restarted)
    command = asyncio.create_task(rig.run(pod, *SHOW))
    await rig.bind(pod, CANARY="yellow")
    assert await command == "yellow", "it has waited"
