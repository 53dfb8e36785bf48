"""The endpoint: its parts, and which of them answers a request.

Control plane and sandboxes share one address, because their paths are different. A request to a sandbox needs the token
of the sandbox, every other one an API key.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import Any, Final, Self

import orjson
from aiohttp import web

from sandpool.e2b import files_api, filesystem_api, interpreter_api, port_proxy, process_api
from sandpool.e2b.access import READ, WRITE, SignedRequest, signer_of
from sandpool.e2b.address import INTERPRETER_PORT, Address, address_of
from sandpool.e2b.attempts import Attempts
from sandpool.e2b.claims import ClaimCache
from sandpool.e2b.control_plane import ControlPlane
from sandpool.e2b.errors import Refusal, refusal_of
from sandpool.e2b.keys import ApiKey, ApiKeys, Authenticator
from sandpool.e2b.options import EndpointOptions
from sandpool.e2b.rpc_http import BODY_SECONDS, client_stream, server_stream, unary
from sandpool.e2b.running import RunningSandbox, RunningSandboxes
from sandpool.engine.clock import Clock
from sandpool.kube.client import Client
from sandpool.kube.errors import ApiError
from sandpool.kube.pod_client import PodClient
from sandpool.kube.user_agent import on_behalf_of_key
from sandpool.service.errors import ServiceError

_log = logging.getLogger(__name__)

_MAX_BODY: Final = 1 << 20
_SYNC_SECONDS: Final = 60.0
_SERVICES: Final = {
    "process.Process": (
        process_api.UNARY,
        process_api.SERVER_STREAMS,
        process_api.CLIENT_STREAMS,
        process_api.KEEPALIVE,
    ),
    "filesystem.Filesystem": (filesystem_api.UNARY, filesystem_api.SERVER_STREAMS, {}, filesystem_api.KEEPALIVE),
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Endpoint:
    """Answers the requests of E2B's packages. ``opened`` makes one that is ready."""

    def __init__(
        self,
        client: Client,
        pods: PodClient,
        keys: ApiKeys,
        secret: bytes,
        options: EndpointOptions,
        clock: Clock,
        rng: Random,
    ) -> None:
        self.options = options
        self.clock = clock
        self.attempts = Attempts(clock)
        self.authenticator = Authenticator(keys, self.attempts, clock, rng)
        self.claims = ClaimCache(client, clock, rng)
        self.running = RunningSandboxes(client, pods, self.claims, secret, options)
        self.control_plane = ControlPlane(self.claims, self.running, secret, options, clock)
        self.application = web.Application(middlewares=[_answer_errors], client_max_size=options.max_body)
        self.application.router.add_route("*", "/{path:.*}", self._dispatch)
        self._routes = self._control_plane_routes()
        self._followers: list[asyncio.Task[None]] = []
        self._authenticated: Callable[[web.Request], None] = _nobody_asks

    @classmethod
    @asynccontextmanager
    async def opened(
        cls,
        client: Client,
        pods: PodClient,
        keys: ApiKeys,
        options: EndpointOptions,
        clock: Clock,
        rng: Random | None = None,
    ) -> AsyncIterator[Self]:
        """An endpoint that knows all keys and sandboxes, for the length of the block."""
        endpoint = cls(client, pods, keys, await keys.secret(), options, clock, rng or Random())
        followers = endpoint._followers = [
            asyncio.create_task(endpoint.authenticator.run(), name="API keys"),
            asyncio.create_task(endpoint.claims.run(), name="claims of the endpoint"),
        ]
        try:
            async with asyncio.timeout(_SYNC_SECONDS):
                await endpoint.authenticator.synced()
                await endpoint.claims.synced()
            yield endpoint
        finally:
            for follower in followers:
                follower.cancel()
            await asyncio.gather(*followers, return_exceptions=True)
            await endpoint.running.close()

    async def wait(self) -> None:
        """Wait until something that never ends has ended, and raise its failure."""
        done, _ = await asyncio.wait(self._followers, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    def set_domain(self, domain: str) -> None:
        """Set the domain of the sandboxes' ports, if it is known only once the endpoint listens."""
        self.control_plane.options = self.options = replace(self.options, domain=domain)

    def on_authenticated(self, call: Callable[[web.Request], None]) -> None:
        """Have a function called for each request whose credentials were accepted, before it is served."""
        self._authenticated = call

    # -- requests ----------------------------------------------------------------------------------------------------

    async def _dispatch(self, request: web.Request) -> web.StreamResponse:
        address = address_of(request.host, request.headers)
        if address is not None:
            return await self._serve_sandbox(request, address)
        if request.path == "/files" and "signature" in request.query:
            return await self._serve_files(request, None)
        return await self._serve_control_plane(request)

    async def _serve_sandbox(self, request: web.Request, address: Address) -> web.StreamResponse:
        if address.is_played and request.path == "/files":
            return await self._serve_files(request, address)
        running = self.running.get(address.sandbox_id)
        with on_behalf_of_key(running.key):
            return await self._serve_running(request, running, address)

    async def _serve_running(
        self, request: web.Request, running: RunningSandbox, address: Address
    ) -> web.StreamResponse:
        if not address.is_played:
            port_proxy.check(request, running, address.port)
            self._authenticated(request)
            return await port_proxy.forward(request, running, address.port)
        if request.path == "/health":
            await running.sandbox()
            return web.Response(status=204)
        if address.port == INTERPRETER_PORT:
            interpreter_api.check(request, running)
            self._authenticated(request)
            return await interpreter_api.serve(request, running)
        running.tokens.check(request.headers)
        self._authenticated(request)
        service, _, method = request.path.removeprefix("/").partition("/")
        if service in _SERVICES:
            return await _call(request, running, service, method)
        raise Refusal(404, f"there is nothing at {request.path}")

    async def _serve_files(self, request: web.Request, address: Address | None) -> web.StreamResponse:
        operation = {"GET": READ, "POST": WRITE}.get(request.method)
        if operation is None:
            raise web.HTTPMethodNotAllowed(request.method, ("GET", "POST"))
        running = self._allowed_for_files(request, address, operation)
        self._authenticated(request)
        with on_behalf_of_key(running.key):
            if operation == READ:
                return await files_api.download(request, running)
            return await files_api.upload(request, running, self.options.max_upload)

    def _allowed_for_files(self, request: web.Request, address: Address | None, operation: str) -> RunningSandbox:
        """The sandbox whose token or signature a request carries."""
        signed = SignedRequest.of(request.query, operation)
        if address is not None:
            running = self.running.get(address.sandbox_id)
            if signed is None:
                running.tokens.check(request.headers)
                return running
            if not signed.is_signed_with(running.tokens.access):
                raise _not_signed()
            signed.check_expiration(self.clock.now().timestamp())
            return running
        if signed is None:
            raise _not_signed()
        attempt = self.attempts.begin(_address(request))
        found = signer_of(signed, ((claim, self.running.tokens(claim)) for claim in self.claims.all()))
        if found is None:
            raise _not_signed()
        attempt.succeeded()
        signed.check_expiration(self.clock.now().timestamp())
        return self.running.of(found)

    async def _serve_control_plane(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/health":
            return web.json_response({"status": "ok"})
        key = await self.authenticator.authenticate(request.headers.get("X-API-Key"), _address(request))
        self._authenticated(request)
        parts = tuple(part for part in request.path.split("/") if part)
        if parts[:1] in (("v2",), ("v3",)):
            parts = parts[1:]
        sandbox_id = parts[1] if len(parts) > 1 else ""
        route = (request.method, *parts[:1], *parts[2:])
        if parts[:1] != ("sandboxes",) or (handler := self._routes.get((bool(sandbox_id), *route))) is None:
            # Not 404: clients would take it for a sandbox that is gone.
            raise Refusal(501, f"{request.method} {request.path} is not supported by this endpoint")
        with on_behalf_of_key(key.id):
            return await handler(request, key, sandbox_id)

    def _control_plane_routes(
        self,
    ) -> dict[tuple[Any, ...], Callable[[web.Request, ApiKey, str], Awaitable[web.StreamResponse]]]:
        return {
            (False, "POST", "sandboxes"): self._create,
            (False, "GET", "sandboxes"): self._list,
            (True, "GET", "sandboxes"): self._info,
            (True, "DELETE", "sandboxes"): self._kill,
            (True, "POST", "sandboxes", "connect"): self._connect,
            (True, "POST", "sandboxes", "resume"): self._connect,
            (True, "POST", "sandboxes", "timeout"): self._set_timeout,
            (True, "POST", "sandboxes", "refreshes"): self._refresh,
            (True, "POST", "sandboxes", "pause"): self._pause,
            (True, "GET", "sandboxes", "metrics"): self._metrics,
        }

    async def _create(self, request: web.Request, key: ApiKey, _: str) -> web.StreamResponse:
        body = await _json(request)
        made = await self.control_plane.create(key, body, request.headers.get("Idempotency-Key", ""))
        return web.json_response(made, status=201)

    async def _list(self, request: web.Request, key: ApiKey, _: str) -> web.StreamResponse:
        page, token = await self.control_plane.page(key, request.query)
        return web.json_response(page, headers={"X-Next-Token": token} if token else {})

    async def _info(self, request: web.Request, key: ApiKey, sandbox_id: str) -> web.StreamResponse:
        return web.json_response(await self.control_plane.info(key, sandbox_id))

    async def _kill(self, request: web.Request, key: ApiKey, sandbox_id: str) -> web.StreamResponse:
        await self.control_plane.kill(key, sandbox_id)
        return web.Response(status=204)

    async def _connect(self, request: web.Request, key: ApiKey, sandbox_id: str) -> web.StreamResponse:
        status, answer = await self.control_plane.connect(key, sandbox_id, await _json(request))
        return web.json_response(answer, status=status)

    async def _set_timeout(self, request: web.Request, key: ApiKey, sandbox_id: str) -> web.StreamResponse:
        await self.control_plane.set_timeout(key, sandbox_id, (await _json(request)).get("timeout"))
        return web.Response(status=204)

    async def _refresh(self, request: web.Request, key: ApiKey, sandbox_id: str) -> web.StreamResponse:
        seconds = (await _json(request)).get("duration", self.options.default_timeout)
        await self.control_plane.refresh(key, sandbox_id, seconds)
        return web.Response(status=204)

    async def _pause(self, request: web.Request, key: ApiKey, sandbox_id: str) -> web.StreamResponse:
        await self.control_plane.pause(key, sandbox_id, await _json(request))
        return web.Response(status=204)

    async def _metrics(self, request: web.Request, key: ApiKey, sandbox_id: str) -> web.StreamResponse:
        return web.json_response(await self.control_plane.metrics(key, sandbox_id))


def _not_signed() -> Refusal:
    return Refusal(401, "the signature does not belong to this path, operation and user of a sandbox")


def _address(request: web.Request) -> str:
    """The IP address of a client; all clients at sockets without one share an address."""
    return request.remote or "::"


def _nobody_asks(request: web.Request) -> None: ...


async def _call(request: web.Request, running: RunningSandbox, service: str, name: str) -> web.StreamResponse:
    if request.method != "POST":
        raise web.HTTPMethodNotAllowed(request.method, ("POST",))
    unaries, server_streams, client_streams, keepalive = _SERVICES[service]
    if (method := unaries.get(name)) is not None:
        return await unary(request, running, method)
    if (streamed := server_streams.get(name)) is not None:
        return await server_stream(request, running, streamed, keepalive)
    if (streaming := client_streams.get(name)) is not None:
        return await client_stream(request, running, streaming)
    raise Refusal(501, f"{service} has no method {name!r} here")


async def _json(request: web.Request) -> dict[str, Any]:
    """The JSON object in the body of a request; empty if there is no body."""
    body = bytearray()
    async with asyncio.timeout(BODY_SECONDS):
        async for piece in request.content.iter_chunked(1 << 16):
            body += piece
            if len(body) > _MAX_BODY:
                raise Refusal(413, f"the request is larger than {_MAX_BODY >> 20} MiB")
    try:
        document = orjson.loads(bytes(body) or b"{}")
    except orjson.JSONDecodeError:
        raise Refusal(400, "the body is not JSON") from None
    if not isinstance(document, dict):
        raise Refusal(400, "the body is not a JSON object")
    return document


@web.middleware
async def _answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer with an error in the shape that the packages expect."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        status, message = error.status, error.reason
    except TimeoutError:
        status, message = 408, "the request did not arrive in time"
    except (Refusal, ServiceError, ApiError, OSError) as error:
        refusal = refusal_of(error)
        status, message = refusal.status, refusal.message
    except Exception:  # noqa: BLE001 - the client gets an answer, the log the reason
        _log.exception("the endpoint failed on %s %s", request.method, request.path)
        status, message = 500, "the endpoint failed; its log has the reason"
    if request.writer.output_size > 0:
        # Half of an answer must not look like all of it.
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the answer was cut off")
    return web.json_response({"code": status, "message": message}, status=status)
