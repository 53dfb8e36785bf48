"""The servers for users and programs, served on loopback, for inputs that only a whole server can judge.

One event loop in a thread serves the dashboard, the E2B endpoint and the MCP server of one in-process world. Commands
in its sandboxes read their input and do nothing, so no input reaches this machine. Those of the MCP server say what the
input says (``SandboxWords``).
"""

from __future__ import annotations

import asyncio
import base64
import socket
import tempfile
import threading
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple, TypeVar

import aiohttp
import orjson

from sandpool.dashboard.access import one_time_code
from sandpool.dashboard.guard import PROTOCOL, SECRET_PROTOCOL, SESSION_HEADER, GuardOptions
from sandpool.dashboard.server import Dashboard, DashboardOptions
from sandpool.dashboard.target import DashboardTarget
from sandpool.e2b.endpoint import Endpoint
from sandpool.e2b.keys import ApiKeys
from sandpool.e2b.listener import listening
from sandpool.e2b.options import EndpointOptions
from sandpool.engine.clock import SystemClock
from sandpool.mcp.http import application, serve
from sandpool.mcp.server import new_server
from sandpool.mcp.sessions import Sessions
from sandpool.router.tokens import ALL, TokenScope, TokenSigner
from sandpool.sdk.client import AsyncClient
from sandpool.service.service import Service
from sandpool.testing.backend import InProcessBackend
from sandpool.testing.world import World
from tests.e2b.test_port_proxy import OneServer
from tests.support.fake_pod_client import FakePodClient, PlayedSession

T = TypeVar("T")

#: The port at which a server listens in the sandbox.
PORT: Final = 8000
MCP_TOKEN: Final = "a-token-for-fuzzing"
MCP_HEADERS: Final[Mapping[str, str | bytes]] = {
    "Authorization": f"Bearer {MCP_TOKEN}",
    "Accept": "application/json, text/event-stream",
    "Content-Type": "application/json",
}
MCP_INITIALIZE: Final = (
    b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},'
    b'"clientInfo":{"name":"x","version":"1"}}}'
)
_POOL: Final = "python"
_LOGIN_TOKEN: Final = "t" * 64
_ROUTER_TOKEN: Final = TokenSigner(b"r" * 32).make(TokenScope(ALL, (ALL,), 1 << 40))
#: Seconds for an answer. An input that hangs a server is a failure too.
_TIMEOUT: Final = 30.0


@dataclass(frozen=True, slots=True)
class Served:
    """The ports of the servers, and what it needs to be let in."""

    world: World
    dashboard: int
    e2b: int
    mcp: int
    mcp_session: dict[str, str | bytes]  # headers of a session of the MCP server
    words: SandboxWords
    session: dict[str, str]  # headers of a session of the dashboard
    api_key: str
    sandbox: dict[str, str]  # the answer to the creation of a sandbox with E2B
    name: str  # of its Sandbox


class FuzzedResponse(NamedTuple):
    """The answer to a request; status 0 is none."""

    status: int
    body: bytes
    head: bytes = b""

    def header(self, name: str) -> str:
        for line in self.head.split(b"\r\n")[1:]:
            key, _, value = line.partition(b":")
            if key.decode().lower() == name:
                return value.decode().strip()
        raise KeyError(name)


class SandboxWords:
    """What commands in sandboxes of the MCP server print. With ``driver`` a Python session answers as its driver does,
    with the words as output and as results; without, its answers are the words."""

    def __init__(self) -> None:
        self.words = b""
        self.driver = True

    async def play(self, session: PlayedSession) -> int:
        if session.options.command[0] != "python3":
            session.write(self.words)
            session.write(self.words, stream=2)
            return 0
        session.write(b'{"pid":1}\n' if self.driver else self.words + b"\n")
        while piece := await session.input.get():
            session.write(self._answer(orjson.loads(piece)["id"]) if self.driver else self.words + b"\n")
        return 0

    def _answer(self, number: int) -> bytes:
        shown = self.words.decode(errors="replace")
        printed = {"stream": "stdout", "data": base64.b64encode(self.words).decode()}
        results = [{"text": shown}, {"text": "", "png": printed["data"]}, {"text": "", "markdown": shown}]
        error = {"name": "E", "value": shown, "traceback": shown} if len(self.words) % 2 else None
        dropped = {"stdout": 0, "stderr": 1, "results": 2}
        done = {"done": number, "results": results, "error": error, "dropped": dropped}
        return b"".join(orjson.dumps(message) + b"\n" for message in (printed, done))


class Surfaces:
    """Started by the first input, and stopped with the process."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="fuzzed servers", daemon=True).start()
        self._stack = AsyncExitStack()
        self.served: Served = self.run(self._stack.enter_async_context(_serving()))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(2 * _TIMEOUT)

    def ask(
        self, port: int, method: str, path: str, headers: Mapping[str, str | bytes], body: bytes = b""
    ) -> FuzzedResponse:
        """Send a request whose headers may be anything but line breaks, on a connection of its own."""
        return self.run(_ask(port, method, path, headers, body))

    def terminal(self, messages: list[bytes], *, as_text: bool) -> bool:
        """Send messages to a terminal of the dashboard; whether it was still open after them."""
        return self.run(self._terminal(messages, as_text))

    async def _terminal(self, messages: list[bytes], as_text: bool) -> bool:
        served = self.served
        url = f"http://127.0.0.1:{served.dashboard}"
        headers = {name: value for name, value in served.session.items() if name != SESSION_HEADER}
        protocols = (PROTOCOL, SECRET_PROTOCOL + served.session[SESSION_HEADER])
        address = f"{url}/api/sandboxes/{served.world.namespace}/{served.name}/terminal"
        async with (
            asyncio.timeout(_TIMEOUT),
            aiohttp.ClientSession(headers=headers) as client,
            client.ws_connect(address, protocols=protocols) as socket,
        ):
            for message in messages:
                await (socket.send_str(message.decode(errors="replace")) if as_text else socket.send_bytes(message))
            await socket.send_bytes(b"\x04")  # the shell ends at the end of its input
            async for answer in socket:
                if answer.type is aiohttp.WSMsgType.TEXT:
                    return bool(orjson.loads(answer.data) == {"exitCode": 0})
        return False


async def _ask(
    port: int, method: str, path: str, headers: Mapping[str, str | bytes], body: bytes = b""
) -> FuzzedResponse:
    lines = [f"{method} {path} HTTP/1.1".encode()]
    sent = {"Host": f"127.0.0.1:{port}", "Connection": "close", "Content-Length": str(len(body)), **headers}
    for name, value in sent.items():
        plain = value.encode() if isinstance(value, str) else value
        lines.append(name.encode() + b": " + plain.translate(None, b"\r\n\0"))
    async with asyncio.timeout(_TIMEOUT):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(b"\r\n".join([*lines, b"", body]))
            answer = await reader.read()
        except ConnectionError:
            answer = b""
        finally:
            writer.close()
    head, _, content = answer.partition(b"\r\n\r\n")
    words = head.split(b" ")
    return FuzzedResponse(int(words[1]) if len(words) > 1 else 0, content, head)


async def _created(port: int, key: str) -> dict[str, str]:
    answer = await _ask(port, "POST", "/v2/sandboxes", {"X-API-Key": key}, b'{"templateID":"base","timeout":86400}')
    assert answer.status == 201, answer
    made: dict[str, str] = orjson.loads(answer.body)
    return made


async def _logged_in(port: int) -> dict[str, str]:
    url = f"http://127.0.0.1:{port}"
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as client:
        code = one_time_code(_LOGIN_TOKEN, SystemClock())
        async with client.post(f"{url}/api/login", json={"code": code}, headers={"Origin": url}) as response:
            assert response.status == 200
            (cookie,) = response.cookies.values()
        async with client.get(f"{url}/") as response:
            page = await response.text()
    secret = page.partition("session&quot;: &quot;")[2].partition("&quot;")[0]
    assert secret
    return {"Origin": url, "Cookie": f"{cookie.key}={cookie.value}", SESSION_HEADER: secret}


async def _mcp_session(port: int) -> dict[str, str | bytes]:
    begun = await _ask(port, "POST", "/mcp", MCP_HEADERS, MCP_INITIALIZE)
    assert begun.status == 200, begun
    headers: dict[str, str | bytes] = {**MCP_HEADERS, "Mcp-Session-Id": begun.header("mcp-session-id")}
    done = await _ask(port, "POST", "/mcp", headers, b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
    assert done.status == 202, done
    return headers


def _listen() -> socket.socket:
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    return listening


@cache
def surfaces() -> Surfaces:
    return Surfaces()


async def _pool() -> str:
    return _POOL


async def _play(session: PlayedSession) -> int:
    while (piece := await session.input.get()) and b"\x04" not in piece:
        pass
    return 0


@asynccontextmanager
async def _serving() -> AsyncIterator[Served]:
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sandpool-fuzz-")))
        backend = await InProcessBackend.start(directory)
        stack.push_async_callback(backend.close)
        world = World(backend)
        await world.start()
        stack.push_async_callback(world.stop)
        await world.template()
        await world.pool(1, name=_POOL)
        pods = FakePodClient(_play)
        stack.push_async_callback(pods.close)

        keys = ApiKeys(world.client)
        key, _ = await keys.create(world.namespace, max_sandboxes=2)
        options = EndpointOptions("localhost:1")
        endpoint = await stack.enter_async_context(Endpoint.opened(world.client, pods, keys, options, SystemClock()))
        _, e2b = await stack.enter_async_context(listening(endpoint, "127.0.0.1", 0))
        sandbox = await _created(e2b, key)
        endpoint.running.get(sandbox["sandboxID"]).service.__dict__["ports"] = OneServer(PORT)
        claim = await Service(world.client, pods, world.namespace).claims.wait_ready(sandbox["sandboxID"])

        dashboard = Dashboard(
            DashboardTarget(world.client, pods, "fuzzed"),
            DashboardOptions(_LOGIN_TOKEN, guard=GuardOptions()),
            SystemClock(),
            Random(1),
        )
        sock = _listen()
        await dashboard.start([sock])
        stack.push_async_callback(dashboard.stop)
        await dashboard.board.attempted()

        words = SandboxWords()
        talking = FakePodClient(words.play)
        stack.push_async_callback(talking.close)
        client = AsyncClient(
            service=Service(world.client, talking, world.namespace),
            router="http://127.0.0.1:1",
            router_token=_ROUTER_TOKEN,
        )
        sessions = Sessions(client, _pool)
        mcp = _listen()
        app = application(new_server(sessions, over_http=True), sessions, MCP_TOKEN)
        serving = asyncio.create_task(serve(app, mcp))
        stack.callback(serving.cancel)
        yield Served(
            world,
            dashboard.port,
            e2b,
            mcp.getsockname()[1],
            await _mcp_session(mcp.getsockname()[1]),
            words,
            await _logged_in(dashboard.port),
            key,
            sandbox,
            claim.sandbox,
        )
