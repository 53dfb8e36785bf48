"""A home that serves ``sandpool run``, spoken to frame by frame; commands are played by the test."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest
import pytest_asyncio

from sandpool import __version__
from sandpool.api.kinds import SANDBOX_CLAIM
from sandpool.cli import progress
from sandpool.cli import run_frames as frames
from sandpool.cli.run_server import RunServer
from sandpool.service.claims import Claims
from sandpool.service.service import Service
from sandpool.testing.world import World
from tests.service.conftest import pods, service, world  # noqa: F401 - fixtures
from tests.support.fake_pod_client import FakePodClient

OTHER = os.geteuid() + 1


class Client:
    """The other end of the socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, kind: int, payload: bytes = b"") -> None:
        self.writer.write(frames.frame(kind, payload))

    def request(self, *arguments: str, version: str = __version__, console: int = 0) -> None:
        self.send(frames.REQUEST, frames.encode_request(version, console, [each.encode() for each in arguments], {}))

    async def receive(self) -> tuple[int, bytes]:
        kind, size = frames.head(await self.reader.readexactly(frames.HEAD))
        return kind, await self.reader.readexactly(size)

    async def until(self, wanted: int) -> list[tuple[int, bytes]]:
        """The frames up to the first of a kind."""
        found = [await self.receive()]
        while found[-1][0] != wanted:
            found.append(await self.receive())
        return found


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"\0{tmp_path}"[:100] + os.urandom(4).hex()


def listening(address: str) -> socket.socket:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.setblocking(False)
    server.bind(address)
    server.listen()
    return server


@pytest_asyncio.fixture
async def home(service: Service, address: str) -> AsyncIterator[AsyncExitStack]:  # noqa: F811
    """A home; ``aclose`` stops it."""

    def in_namespace(namespace: str | None) -> Service:
        return Service(service.client, service.pods, namespace or service.namespace)

    async with AsyncExitStack() as running:
        runs = RunServer(in_namespace, {os.geteuid()})
        await running.enter_async_context(runs.serving([listening(address)]))
        yield running


@pytest_asyncio.fixture
async def client(home: AsyncExitStack, address: str) -> AsyncIterator[Client]:
    client = Client(*await asyncio.open_unix_connection(address))
    yield client
    client.writer.close()


@pytest_asyncio.fixture(autouse=True)
async def pool(world: World) -> None:  # noqa: F811
    await world.template()
    await world.pool(replicas=1)
    await world.filled(1)


async def claims(service: Service) -> list[str]:  # noqa: F811
    return [claim.name for claim in await service.claims.list()]


async def test_output_and_exit_code_are_those_of_the_command(client: Client, service: Service) -> None:  # noqa: F811
    client.request("--pool", "pool", "echo", "a", "b")
    assert await client.until(frames.EXIT) == [
        (frames.STARTED, b"\0"),
        (frames.OUTPUT, b"a b\n"),
        (frames.ENDED, b""),
        (frames.EXIT, b"\0"),
    ]
    assert await claims(service) == []


@pytest.mark.parametrize("console", [0, frames.MESSAGES_ON_TERMINAL])
async def test_client_in_a_terminal_sees_how_long_a_sandbox_takes(
    console: int, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def create(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Claims, "create", create)
    monkeypatch.setattr(progress, "_SLOW", 0.0)
    monkeypatch.setattr(progress, "_SECOND", 0.0)
    client.request("--pool", "pool", "true", console=console)
    waiting = b"waiting for a sandbox of pool pool ..."
    if console:
        assert [await client.receive() for _ in range(3)][2] == (frames.MESSAGE, b"\r\x1b[K" + waiting + b" 0 s")
    else:
        assert await client.receive() == (frames.MESSAGE, waiting + b"\n")
    client.send(frames.CANCEL)
    said = [text for kind, text in await client.until(frames.EXIT) if kind == frames.MESSAGE]
    assert said[-1:] == ([b"\r\x1b[K"] if console else []), "the line is removed from the terminal"


async def test_input_is_sent_as_far_as_the_command_reads(client: Client) -> None:
    client.request("cat", console=frames.INTERACTIVE)
    started, wanted = await client.until(frames.WANT)
    assert started == (frames.STARTED, bytes((frames.INTERACTIVE,)))
    assert len(wanted[1]) == 4
    client.send(frames.INPUT, b"one")
    assert {await client.receive(), await client.receive()} == {(frames.OUTPUT, b"one"), (frames.WANT, b"\0")}
    client.send(frames.INPUT)
    assert (await client.until(frames.EXIT))[-1] == (frames.EXIT, b"\0")


@pytest.mark.parametrize("how", ["cancels", "disconnects"])
async def test_a_client_that_gives_up_releases_its_claim(
    client: Client,
    service: Service,  # noqa: F811
    pods: FakePodClient,  # noqa: F811
    how: str,
) -> None:
    client.request("wait")
    await client.until(frames.OUTPUT)
    assert len(await claims(service)) == 1
    if how == "cancels":
        client.send(frames.CANCEL)
        await client.until(frames.EXIT)
    else:
        client.writer.close()
        await _released(service)
    assert await claims(service) == []
    assert pods.sessions[0].closed


async def _released(service: Service) -> None:  # noqa: F811
    async for event in service.client.watch(SANDBOX_CLAIM, service.namespace):
        if event.type == "DELETED":
            return


async def test_down_during_a_run_releases_its_claim_and_tells_the_client(
    home: AsyncExitStack,
    client: Client,
    service: Service,  # noqa: F811
) -> None:
    client.request("wait")
    await client.until(frames.OUTPUT)
    await home.aclose()
    said = await client.until(frames.EXIT)
    assert (frames.MESSAGE, b"Error: the connection to the sandbox ended before the command did\n") in said
    assert said[-1] == (frames.EXIT, b"\1")
    assert await claims(service) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("--nope",),
        (),
        ("--context", "x", "true"),
        ("--kubeconfig", "/x", "true"),
        ("-v", "/etc/hostname:x", "true"),
        ("-e", "NOT_SENT", "true"),
    ],
    ids=" ".join,
)
async def test_what_only_a_process_of_the_user_can_do_is_declined_before_anything_happens(
    client: Client,
    service: Service,  # noqa: F811
    arguments: tuple[str, ...],
) -> None:
    client.request(*arguments)
    assert await client.receive() == (frames.DECLINED, b"")
    assert await claims(service) == []


async def test_a_client_of_another_version_is_declined(client: Client) -> None:
    client.request("true", version="0.0.0")
    assert await client.receive() == (frames.DECLINED, b"")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        frames.frame(frames.REQUEST, b"no request"),
        frames.frame(frames.REQUEST, b"\0\0\0"),
        frames.frame(frames.REQUEST, f"{__version__}\0000\0007".encode()),
        bytes((frames.REQUEST,)) + b"\xff\xff\xff\xff",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
async def test_what_is_no_request_is_not_answered(client: Client, data: bytes) -> None:
    client.writer.write(data)
    client.writer.write_eof()
    assert await client.reader.read() == b""


async def test_other_users_are_refused(service: Service, address: str) -> None:  # noqa: F811
    async with RunServer(lambda _: service, {OTHER}).serving([listening(address)]):
        reader, writer = await asyncio.open_unix_connection(address)
        with suppress(ConnectionResetError):  # the request was not read
            Client(reader, writer).request("true")
            assert await reader.read() == b""
        writer.close()
    assert await claims(service) == []


async def test_an_error_is_shown_as_the_command_line_shows_it(client: Client) -> None:
    client.request("--pool", "poll", "true")
    (kind, text), end = await client.until(frames.EXIT)
    assert (kind, text.splitlines()[-1], end[1]) == (frames.MESSAGE, b"Did you mean pool?", b"\1")


async def test_a_mistake_that_is_found_late_is_shown_with_the_usage(client: Client) -> None:
    client.request("-p", "a", "--template", "b", "true")
    (kind, text), end = await client.until(frames.EXIT)
    assert (kind, end[1]) == (frames.MESSAGE, b"\2")
    assert text.startswith(
        b"Usage: sandpool run [OPTIONS] COMMAND...\nTry 'sandpool run --help' for help.\n\nError: use --pool"
    )
