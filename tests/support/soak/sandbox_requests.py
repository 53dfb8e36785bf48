"""Requests to a sandbox and their outcome: through the router, and as ``kubectl exec`` does."""

from __future__ import annotations

import asyncio
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp
import orjson

from sandpool.kube.connection import Connection
from tests.support.soak.command_log import Broken, Fate

#: Responses of the router for a sandbox that it did not connect to.
_NOT_REACHED: Final = "Could not connect"
_STATUS: Final = b"\x03"
_TIMEOUT: Final = 60.0


class RequestOutcome:
    """``status`` is 0 without a response."""

    def __init__(self, fate: Fate, status: int = 0, body: bytes = b"") -> None:
        self.fate = fate
        self.status = status
        self.body = body


class Router:
    """Uses a new connection for each request, so that a refused connection differs from a broken one."""

    def __init__(self, url: str) -> None:
        connector = aiohttp.TCPConnector(force_close=True)
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT)
        self._session = aiohttp.ClientSession(url, connector=connector, timeout=timeout)

    async def close(self) -> None:
        await self._session.close()

    async def run(self, sandbox: str, command: str) -> RequestOutcome:
        answer = await self._ask("POST", sandbox, "/execute", json={"command": command})
        if answer.status == 200 and (code := orjson.loads(answer.body)["exit_code"]):
            raise Broken(f"{sandbox}: {command!r} ended with {code}: {answer.body!r}")
        return answer

    async def write(self, sandbox: str, name: str, content: bytes) -> RequestOutcome:
        form = aiohttp.FormData(quote_fields=False)
        form.add_field("file", content, filename=name)
        return await self._ask("POST", sandbox, "/upload", data=form)

    async def read(self, sandbox: str, path: str) -> RequestOutcome:
        return await self._ask("GET", sandbox, f"/download/{path}")

    async def _ask(self, method: str, sandbox: str, path: str, **options: Any) -> RequestOutcome:
        headers = {"X-Sandbox-ID": sandbox, "X-Sandbox-Timeout": str(_TIMEOUT)}
        try:
            async with self._session.request(method, path, headers=headers, **options) as response:
                body = await response.read()
        except aiohttp.ClientConnectorError:
            return RequestOutcome(Fate.REFUSED)
        except (aiohttp.ClientError, TimeoutError, OSError):
            return RequestOutcome(Fate.UNKNOWN)
        return RequestOutcome(_fate(response.status, body), response.status, body)


def _fate(status: int, body: bytes) -> Fate:
    if status == 200:
        return Fate.DONE
    if status in (400, 403, 404, 409, 503) or (status == 502 and _NOT_REACHED.encode() in body):
        return Fate.REFUSED
    return Fate.UNKNOWN


async def execute(connection: Connection, pod: str, *command: str) -> Fate:
    """Run a command over a WebSocket of the API server. A command that ran always exits with 0."""
    query = urlencode([*(("command", word) for word in command), ("stdout", "true"), ("stderr", "true")])
    url = f"{connection.server}/api/v1/namespaces/default/pods/{pod}/exec?{query}"
    auth = await connection.credentials.auth()
    headers = {"Authorization": auth.authorization or ""}
    protocols = ("v5.channel.k8s.io",)
    try:
        async with (
            asyncio.timeout(_TIMEOUT),
            aiohttp.ClientSession(headers=headers) as session,
            session.ws_connect(url, protocols=protocols, ssl=connection.tls or True) as socket,
        ):
            said = b""
            async for message in socket:
                if message.type is aiohttp.WSMsgType.BINARY and message.data[:1] == _STATUS:
                    return _ended(pod, orjson.loads(message.data[1:]), said)
                said += message.data[1:]
    except (aiohttp.ClientConnectorError, aiohttp.WSServerHandshakeError):
        return Fate.REFUSED
    except (aiohttp.ClientError, TimeoutError, OSError):
        return Fate.UNKNOWN
    return Fate.UNKNOWN


def _ended(pod: str, status: Any, said: bytes) -> Fate:
    if status["status"] == "Success":
        return Fate.DONE
    if status.get("reason") == "NonZeroExitCode":
        raise Broken(f"{pod}: a command failed: {status['message']}: {said!r}")
    return Fate.UNKNOWN
