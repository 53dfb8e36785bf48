"""Exec, port-forward and logs against the embedded API server, to a pod that the test plays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sandpool.api.kinds import POD
from sandpool.kube import kubeconfig
from sandpool.kube.client import MergePatch
from sandpool.kube.errors import NotFound
from sandpool.kube.pod_access import Size, StreamClient
from sandpool.kube.pod_client import (
    STDERR,
    STDOUT,
    ExecError,
    ExecOptions,
    HttpPodClient,
    LogOptions,
    Output,
    PodClient,
)
from sandpool.kube.port_forward import PortForward
from sandpool.server.serving.daemon import Daemon, ServerOptions
from sandpool.testing.objects import new
from sandpool.testing.waiting import until
from tests.support.fake_pod_access import FakePodAccess


async def play(command: tuple[str, ...], client: StreamClient) -> int:
    match command:
        case ("echo", *words):
            await client.write(" ".join(words).encode() + b"\n")
        case ("both",):
            await client.write(b"out")
            await client.write(b"err", error=True)
        case ("cat",):
            while data := await client.receive():
                await client.write(data)
        case ("exit", code):
            return int(code)
        case ("size",):
            await client.write(f"{await client.next_size()}".encode())
        case ("wait",):
            await client.write(b"waiting")
            await asyncio.get_running_loop().create_future()
    return 0


@pytest_asyncio.fixture
async def pod_access() -> FakePodAccess:
    return FakePodAccess(play)


@pytest_asyncio.fixture(params=["HTTP", "in process"])
async def pods(request: pytest.FixtureRequest, pod_access: FakePodAccess, tmp_path: Path) -> AsyncIterator[PodClient]:
    daemon = Daemon(ServerOptions(tmp_path / "data", port=0))
    await daemon.start()
    daemon.server.pod_access = pod_access
    client = daemon.server.client()
    spec = {"nodeName": "node", "containers": [{"name": "main", "image": "a"}]}
    await client.create(POD, new(POD, "box", spec=spec), "default")
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    await client.patch(POD, "box", MergePatch({"status": status}), "default", subresource="status")
    if request.param == "HTTP":
        yield HttpPodClient(kubeconfig.load(daemon.kubeconfig))
    else:
        in_process = daemon.server.pod_client()
        yield in_process
        await in_process.close()
    await daemon.stop(0)


async def run(pods: PodClient, *command: str, stdin: bytes | None = None) -> tuple[list[Output], int]:
    session = await pods.execute("default", "box", ExecOptions(command, stdin=stdin is not None))
    if stdin is not None:
        await session.send(stdin)
        await session.end_input()
    output = [piece async for piece in session.output()]
    try:
        return output, await session.exit_code()
    finally:
        await session.close()


async def test_exec_returns_output_and_exit_code(pods: PodClient) -> None:
    assert await run(pods, "echo", "a b", "&", "ü") == ([Output(STDOUT, "a b & ü\n".encode())], 0)
    assert await run(pods, "both") == ([Output(STDOUT, b"out"), Output(STDERR, b"err")], 0)
    assert await run(pods, "exit", "42") == ([], 42)


async def test_exec_forwards_stdin_to_its_end(pods: PodClient) -> None:
    typed = b"0123456789" * 20_000
    output, code = await run(pods, "cat", stdin=typed)
    assert (b"".join(piece.data for piece in output), code) == (typed, 0)


async def test_exec_terminal_has_a_size(pods: PodClient) -> None:
    session = await pods.execute("default", "box", ExecOptions(("size",), stdin=True, tty=True))
    await session.resize(Size(100, 30))
    assert [piece.data async for piece in session.output()] == [b"Size(columns=100, rows=30)"]
    await session.close()


async def test_closing_the_session_ends_the_command(pods: PodClient, pod_access: FakePodAccess) -> None:
    session = await pods.execute("default", "box", ExecOptions(("wait",)))
    assert await anext(session.output()) == Output(STDOUT, b"waiting")
    assert pod_access.running == 1
    await session.close()

    async def ended() -> bool:
        return pod_access.running == 0

    await until(ended)
    with pytest.raises(ExecError, match="ended before the command did"):
        await session.exit_code()


async def test_command_that_cannot_be_started_is_reported(pods: PodClient) -> None:
    with pytest.raises(ExecError, match="container main is not running"):
        await run(pods, "impossible")


async def test_missing_pod_is_reported(pods: PodClient) -> None:
    with pytest.raises(NotFound, match='pods "no" not found'):
        await pods.execute("default", "no", ExecOptions(("echo",)))
    with pytest.raises(NotFound):
        await anext(aiter(pods.logs("default", "no", LogOptions())))


async def test_logs_are_read_with_options(pods: PodClient, pod_access: FakePodAccess) -> None:
    pod_access.log = [b"one\n", b"two\n"]
    assert b"".join([piece async for piece in pods.logs("default", "box", LogOptions(tail=5))]) == b"one\ntwo\n"
    assert pod_access.queries[0].tail == 5
    pod_access.more = asyncio.Event()
    following = pods.logs("default", "box", LogOptions(follow=True, timestamps=True))
    received = b""
    async for piece in following:
        received += piece
        if received.endswith(b"two\n"):
            pod_access.more.set()
    assert received == b"one\ntwo\nthe last\n"
    assert pod_access.queries[1].timestamps


async def test_port_forward_serves_connections(pods: PodClient, pod_access: FakePodAccess) -> None:
    async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read()).upper())
        writer.close()

    server = await asyncio.start_server(shout, "127.0.0.1", 0)
    pod_access.ports[80] = server.sockets[0].getsockname()[1]
    async with PortForward(await pods.tunnel("default", "box")) as forward:
        for text in (b"one", b"x" * 300_000):
            connection = await forward.connect(80)
            await connection.send(text)
            await connection.end()
            received = b""
            while piece := await connection.receive():
                received += piece
            assert received == text.upper()
            assert await connection.refusal() == ""
        refused = await forward.connect(81)
        assert await refused.receive() == b""
        assert "nothing listens on it" in await refused.refusal()
        assert forward.open
    server.close()
    await server.wait_closed()
