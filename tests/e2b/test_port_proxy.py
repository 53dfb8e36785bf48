from __future__ import annotations

import gzip
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from sandpool.e2b.endpoint import Endpoint
from sandpool.e2b.port_proxy import ForwardedPorts
from sandpool.service.sandboxes import Sandbox
from tests.e2b.conftest import Guest, Tenant


class OneServer:
    """The ports of a sandbox in which one server listens."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.seen: list[web.Request] = []

    @asynccontextmanager
    async def forward_to_socket(self, sandbox: Sandbox, port: int, path: Path) -> AsyncIterator[None]:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._serve)
        runner = web.AppRunner(application)
        await runner.setup()
        if port == self.port:
            await web.UnixSite(runner, str(path)).start()
        try:
            yield
        finally:
            await runner.cleanup()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request)
        if request.headers.get("Upgrade") == "websocket":
            socket = web.WebSocketResponse(protocols=("chat",))
            await socket.prepare(request)
            async for message in socket:
                await (socket.send_str if message.type is aiohttp.WSMsgType.TEXT else socket.send_bytes)(message.data)
                if message.data == "bye":
                    await socket.close(code=4001)
            return socket
        body = await request.read()
        headers = {"X-Answer": "yes", "Connection": "x-hop", "X-Hop": "1", "Set-Cookie": "a=b"}
        text = f"{request.method} {request.raw_path} {len(body)}"
        return web.Response(status=302 if request.path == "/away" else 201, text=text, headers=headers)


@pytest.fixture
def server(endpoint: Endpoint) -> OneServer:
    return OneServer(8080)


async def opened(endpoint: Endpoint, tenant: Tenant, server: OneServer, **body: Any) -> Guest:
    guest = await tenant.create(**body)
    endpoint.running.get(guest.id).service.__dict__["ports"] = server
    return guest


def host(guest: Guest, port: int = 8080) -> dict[str, str]:
    return {"Host": f"{port}-{guest.id}.localhost"}


async def test_requests_and_answers_pass_unchanged(endpoint: Endpoint, tenant: Tenant, server: OneServer) -> None:
    guest = await opened(endpoint, tenant, server)
    path = "/a%2Fb/../c?q=%20x&q=2"
    async with aiohttp.ClientSession() as session:
        url = URL(f"{guest.api.url}{path}", encoded=True)
        sent = {**host(guest), "X-API-Key": "secret", "X-Mine": "1", "X-Access-Token": "t"}
        async with session.put(url, headers=sent, data=b"12345") as answer:
            assert (answer.status, await answer.text()) == (201, f"PUT {path} 5")
            assert answer.headers["X-Answer"] == "yes" and "X-Hop" not in answer.headers
    (seen,) = server.seen
    assert (seen.headers["X-Mine"], seen.headers["Host"]) == ("1", host(guest)["Host"])
    assert not {"X-API-Key", "X-Access-Token"} & set(seen.headers)
    away = await guest.api.request("GET", "/away", host(guest), allow_redirects=False)
    assert away.status == 302
    packed = {**host(guest), "Content-Encoding": "gzip"}
    unpacked = await guest.api.request("POST", "/packed", packed, data=gzip.compress(b"x" * 100))
    assert unpacked.body == b"POST /packed 100"


async def test_paths_of_the_endpoint_belong_to_the_sandbox_on_its_host(
    endpoint: Endpoint, tenant: Tenant, server: OneServer
) -> None:
    guest = await opened(endpoint, tenant, server)
    for path in ("/health", "/files", "/sandboxes", "/execute"):
        assert (await guest.api.request("GET", path, host(guest))).body == f"GET {path} 0".encode()


async def test_websockets_are_relayed_both_ways(endpoint: Endpoint, tenant: Tenant, server: OneServer) -> None:
    guest = await opened(endpoint, tenant, server)
    connecting = guest.api.session.ws_connect(f"{guest.api.url}/ws", headers=host(guest), protocols=("other", "chat"))
    async with connecting as socket:
        assert socket.protocol == "chat"
        await socket.send_str("größe")
        assert await socket.receive_str() == "größe"
        await socket.send_bytes(b"\x00\xff")
        assert await socket.receive_bytes() == b"\x00\xff"
        await socket.send_str("bye")
        assert await socket.receive_str() == "bye"
        assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE
        assert socket.close_code == 4001


async def test_closed_ports_and_unknown_sandboxes_are_told(
    endpoint: Endpoint, tenant: Tenant, server: OneServer
) -> None:
    guest = await opened(endpoint, tenant, server)
    closed = await guest.api.request("GET", "/", host(guest, 9090))
    assert (closed.status, "port is not open" in closed.document["message"]) == (502, True)
    unknown = await guest.api.request("GET", "/", {"Host": "80-inone.localhost"})
    assert (unknown.status, "was not found" in unknown.document["message"]) == (502, True)


async def test_private_ports_need_the_token(endpoint: Endpoint, tenant: Tenant, server: OneServer) -> None:
    guest = await opened(endpoint, tenant, server, network={"allowPublicTraffic": False})
    assert (await guest.api.request("GET", "/", host(guest))).status == 403
    for name, token in (("E2B-Traffic-Access-Token", guest.traffic_token), ("X-Access-Token", guest.token)):
        assert (await guest.api.request("GET", "/", {**host(guest), name: token})).status == 201


async def test_another_port_takes_the_place_of_the_one_used_least_recently(
    endpoint: Endpoint, tenant: Tenant, server: OneServer
) -> None:
    """A visitor of a public port may ask for every port there is, and the others stay reachable."""
    guest = await opened(endpoint, tenant, server)
    most = endpoint.options.max_ports
    for port in range(9000, 9000 + 2 * most):
        answer = await guest.api.request("GET", "/", host(guest, port))
        assert answer.status == 502, "nothing listens there, but it was tried"
    assert (await guest.api.request("GET", "/", host(guest))).status == 201


async def test_port_in_use_is_not_taken_away(endpoint: Endpoint, tenant: Tenant, server: OneServer) -> None:
    guest = await opened(endpoint, tenant, server)
    most = endpoint.options.max_ports
    async with guest.api.session.ws_connect(f"{guest.api.url}/ws", headers=host(guest)) as socket:
        for port in range(9000, 9000 + 2 * most):
            await guest.api.request("GET", "/", host(guest, port))
        await socket.send_str("still here")
        assert await socket.receive_str() == "still here"
        await socket.send_str("bye")


async def test_sockets_of_ports_go_with_them(
    endpoint: Endpoint, tenant: Tenant, server: OneServer, tmp_path: Path
) -> None:
    directory = tmp_path / "ports"
    os.mkdir(directory)
    guest = await tenant.create()
    running = endpoint.running.get(guest.id)
    running.service.__dict__["ports"] = server
    ports = ForwardedPorts(running, 2, directory)
    for port in (8080, 9000, 8080, 9001):
        async with ports.session(port) as session:
            if port == 8080:
                async with session.get("http://sandbox/") as answer:
                    assert answer.status == 201
    await ports.close()
    assert os.listdir(directory) == []


@pytest.mark.parametrize("port", [8888, 8879])
@pytest.mark.parametrize("public", [True, False])
async def test_ports_of_sandboxd_need_the_token_for_commands(
    endpoint: Endpoint, tenant: Tenant, port: int, public: bool
) -> None:
    server = OneServer(port)
    guest = await opened(endpoint, tenant, server, network={"allowPublicTraffic": public})
    traffic = {"E2B-Traffic-Access-Token": guest.traffic_token}
    for by_host in (host(guest, port), {"E2b-Sandbox-Id": guest.id, "E2b-Sandbox-Port": f"0{port}"}):
        for token in ({}, traffic, {"X-Access-Token": guest.traffic_token}):
            refused = await guest.api.request("POST", "/execute", {**by_host, **token}, json={"command": "id"})
            assert (refused.status, "X-Access-Token" in refused.document["message"]) == (403, True)
        with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
            await guest.api.session.ws_connect(f"{guest.api.url}/ws", headers={**by_host, **traffic})
        assert not server.seen
    allowed = await guest.api.request("POST", "/execute", {**host(guest, port), "X-Access-Token": guest.token})
    assert allowed.status == 201
