"""Commands and files in sandboxes whose image brings neither Python nor a server."""

from __future__ import annotations

import asyncio
import json
import os
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sandpool.api.kinds import POD, SANDBOX
from sandpool.api.labels import INJECT_RUNTIME
from sandpool.api.resource import Object
from sandpool.node.images.reference import parse
from sandpool.node.images.resolver import import_image
from sandpool.node.images.store import ImageStore
from sandpool.testing.objects import new
from tests.support.real_node import RealNode, real_node
from tests.support.tiny_image import copy_programs

pytestmark = [pytest.mark.isolation, pytest.mark.asyncio(loop_scope="module")]


def elf(code: str) -> bytes:
    """A program for x86-64 Linux without libraries, from machine code in hexadecimal."""
    text = bytes.fromhex(code)
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, 0x400078, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    size = 120 + len(text)
    return head + struct.pack("<IIQQQQQQ", 1, 5, 0, 0x400000, 0x400000, size, size, 4096) + text


PAUSE = elf("b822000000 0f05 ebf7")  # pause() in a loop
EXIT_7 = elf("bf07000000 b83c000000 0f05")  # exit(7)
PROBE = {"readinessProbe": {"tcpSocket": {"port": 8888}}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RealNode]:
    tree = tmp_path_factory.mktemp("image")
    copy_programs(tree, "/bin/sh", "/bin/cat", "/bin/ls", "/bin/sleep", "/usr/bin/touch")
    (tree / "etc").mkdir(exist_ok=True)
    (tree / "etc/os-release").write_text("ID=tiny\n")
    async with real_node(tmp_path_factory.mktemp("node")) as running:
        store = ImageStore(running.node.settings.directory / "images", set)
        await asyncio.to_thread(import_image, store, parse("tiny"), str(tree))
        yield running


async def sandbox(node: RealNode, name: str, *argv: str, **fields: Any) -> str:
    """A pod of the image as the controller makes it for a sandbox."""
    template = {"spec": {"containers": [{"name": "main", "image": "tiny"}]}}
    owner = await node.client.create(SANDBOX, new(SANDBOX, name, spec={"podTemplate": template}), "default")
    reference = {
        "apiVersion": owner["apiVersion"], "kind": "Sandbox", "name": name, "uid": owner["metadata"]["uid"],
        "controller": True,
    }  # fmt: skip
    container = {"image": "tiny", **fields.pop("container", {})}
    metadata = {"ownerReferences": [reference], **fields.pop("metadata", {})}
    return await node.create(*argv, container=container, metadata=metadata, **fields)


async def ask(node: RealNode, name: str, method: str, path: str, body: Object | None = None) -> Any:
    pod = await node.client.get(POD, name, "default")
    connection = await node.node.network.dial(pod["metadata"]["uid"], 8888)
    reader, writer = await asyncio.open_connection(sock=connection)
    content = json.dumps(body).encode() if body is not None else b""
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    answer = await reader.read()
    writer.close()
    status, _, payload = answer.partition(b"\r\n\r\n")
    assert b" 200 " in status.splitlines()[0], answer
    return json.loads(payload)


async def test_an_image_without_a_server_gets_commands_and_files(node: RealNode) -> None:
    name = await sandbox(node, "injected", "sleep", "1000", container=PROBE)
    await node.ready(name)
    answer = await ask(node, name, "POST", "/execute", {"command": "sh -c 'cat /etc/os-release; echo $PATH; pwd'"})
    assert answer["exit_code"] == 0, answer
    lines = answer["stdout"].splitlines()
    assert lines[0] == "ID=tiny"
    assert ".sandpool" not in lines[1], "its programs are not in PATH"
    assert lines[2] == "/workspace"
    refused = await ask(node, name, "POST", "/execute", {"command": "touch /.sandpool/runtime/x"})
    assert refused["exit_code"] != 0 and "Read-only" in refused["stderr"]


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the program of the image is machine code")
async def test_an_image_without_a_c_library_gets_commands_and_files(node: RealNode, tmp_path: Path) -> None:
    """The runtime brings its own loader and libraries. Those of the image, musl or none at all, do not matter."""
    for program, content in (("pause", PAUSE), ("seven", EXIT_7)):
        (tmp_path / program).write_bytes(content)
        (tmp_path / program).chmod(0o755)
    store = ImageStore(node.node.settings.directory / "images", set)
    await asyncio.to_thread(import_image, store, parse("bare"), str(tmp_path))
    name = await sandbox(node, "bare", "/pause", container={**PROBE, "image": "bare"})
    await node.ready(name)
    assert (await ask(node, name, "POST", "/execute", {"command": "/seven"}))["exit_code"] == 7
    assert await ask(node, name, "GET", "/list/.") == []


async def test_a_container_ends_with_the_command_of_its_template(node: RealNode) -> None:
    name = await sandbox(node, "ending", "sh", "-c", "echo working; exit 3", spec={"restartPolicy": "Never"})
    pod = await node.phase(name, "Failed")
    assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3
    assert await node.output(name) == "working\n"


async def test_a_template_can_say_no(node: RealNode) -> None:
    name = await sandbox(
        node, "without", "sh", "-c", "ls -a /; sleep 1000", metadata={"annotations": {INJECT_RUNTIME: "false"}}
    )
    pod = await node.ready(name)
    assert ".sandpool" not in await node.says(name, "proc")
    with pytest.raises(ConnectionRefusedError):
        await node.node.network.dial(pod["metadata"]["uid"], 8888)


async def test_only_sandboxes_get_it(node: RealNode) -> None:
    name = await node.create("sh", "-c", "ls -a /", container={"image": "tiny"}, spec={"restartPolicy": "Never"})
    await node.phase(name, "Succeeded")
    assert ".sandpool" not in await node.output(name)
