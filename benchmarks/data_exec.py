"""Runs commands as ``kubectl exec`` does: a WebSocket with channels, on a new connection for each."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from urllib.parse import quote, urlsplit

import orjson
from wsproto import ConnectionType, WSConnection
from wsproto.events import BytesMessage, RejectConnection, Request

from sandpool.kube.connection import Connection
from sandpool.kube.kubeconfig import load

_PROTOCOL = "v5.channel.k8s.io"
_STATUS = 3  # the channel that carries the exit status and is written last


def exec_path(pod: str, *command: str) -> str:
    asked = "&".join(f"command={quote(word)}" for word in command)
    return f"/api/v1/namespaces/default/pods/{pod}/exec?{asked}&stdout=true&stderr=true"


async def executions(kubeconfig: Path, path: str, count: int) -> list[tuple[float, float]]:
    """Run commands one after the other. Returns the seconds to connect, and from there to the end of the command."""
    connection = load(kubeconfig)
    auth = await connection.credentials.auth()
    return [await _execution(connection, auth.authorization or "", path) for _ in range(count)]


async def abandoned(kubeconfig: Path, path: str, turns: int) -> None:
    """Request a command, and close the connection after ``turns`` iterations of the event loop."""
    connection = load(kubeconfig)
    auth = await connection.credentials.auth()
    _, writer = await _connected(connection)
    _ask(writer, connection, auth.authorization or "", path)
    for _ in range(turns):
        await asyncio.sleep(0)
    writer.transport.abort()


async def _execution(connection: Connection, authorization: str, path: str) -> tuple[float, float]:
    began = time.perf_counter()
    reader, writer = await _connected(connection)
    connected = time.perf_counter()
    talk = _ask(writer, connection, authorization, path)
    try:
        status = await _status(talk, reader)
    finally:
        writer.close()
    assert status["status"] == "Success", status
    return connected - began, time.perf_counter() - connected


async def _connected(connection: Connection) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    where = urlsplit(connection.server)
    return await asyncio.open_connection(where.hostname, where.port, ssl=connection.tls)


def _ask(writer: asyncio.StreamWriter, connection: Connection, authorization: str, path: str) -> WSConnection:
    talk = WSConnection(ConnectionType.CLIENT)
    headers = [(b"authorization", authorization.encode())]
    netloc = urlsplit(connection.server).netloc
    writer.write(talk.send(Request(netloc, path, subprotocols=[_PROTOCOL], extra_headers=headers)))
    return talk


async def _status(talk: WSConnection, reader: asyncio.StreamReader) -> dict[str, object]:
    while data := await reader.read(1 << 16):
        talk.receive_data(data)
        for event in talk.events():
            assert not isinstance(event, RejectConnection), event
            if isinstance(event, BytesMessage) and event.data[0] == _STATUS:
                status: dict[str, object] = orjson.loads(event.data[1:])
                return status
    raise AssertionError("the connection has ended before the command")
