"""The sandboxes of the clients of an MCP server.

A session is one client: the one at the other end of standard input and output, or an HTTP session. It sees only
sandboxes that it made, and its sandboxes end with it. Protocol versions since 2026-07-28 have no sessions over HTTP;
clients that use them share one, in which a sandbox must be named and is released when it was not used for a while.
Claims have the lease of the client (``sdk.lease``), so a server that is killed leaves none behind either.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from sandpool.kube.user_agent import on_behalf_of_session
from sandpool.sdk.client import AsyncClient
from sandpool.sdk.errors import SandboxLost
from sandpool.sdk.sandbox import AsyncSandbox
from sandpool.service.errors import ServiceError, UnknownName

#: Seconds after which an unused sandbox is released: of an HTTP session, and of clients without a session.
HTTP_IDLE: Final = 1800.0
SESSIONLESS_IDLE: Final = 300.0
#: Seconds to wait for a sandbox.
READY_TIMEOUT: Final = 180.0
_ID_LETTERS: Final = 12

#: Chooses the pool for a sandbox of which none was named; makes one if there is none.
PoolChoice = Callable[[], Awaitable[str]]


class Metadata(NamedTuple):
    """Labels of a claim, and labels and annotations for its pod."""

    labels: Mapping[str, str] | None = None
    pod_labels: Mapping[str, str] | None = None
    pod_annotations: Mapping[str, str] | None = None


NO_METADATA: Final = Metadata()


class _Held:
    """A sandbox of a session; ``idle`` is how long it stays unused, None for as long as its session."""

    def __init__(self, sandbox: AsyncSandbox, idle: float | None) -> None:
        self.sandbox = sandbox
        self.idle = idle
        self.uses = 0
        self.expiry: asyncio.TimerHandle | None = None


class Session:
    """The sandboxes of one client. ``id`` names it in the audit log of the API. ``idle`` is the default of ``create``;
    ``is_lasting`` tells whether calls without a name share a sandbox. ``releasing`` gets the tasks that release unused
    sandboxes."""

    def __init__(
        self,
        client: AsyncClient,
        pool: PoolChoice,
        id: str,  # noqa: A002
        idle: float | None,
        releasing: set[asyncio.Task[None]],
        *,
        is_lasting: bool,
    ) -> None:
        self._client = client
        self._pool = pool
        self.id = id
        self._idle = idle
        self._is_lasting = is_lasting
        self._held: dict[str, _Held] = {}
        self._own = ""  # the sandbox of calls without a name
        self._choosing = asyncio.Lock()
        self._releasing = releasing

    def names(self) -> list[str]:
        """The names of the claims of its sandboxes."""
        return list(self._held)

    async def create(
        self,
        pool: str | None = None,
        *,
        timeout: float = READY_TIMEOUT,
        idle: float | None = None,
        metadata: Metadata = NO_METADATA,
    ) -> AsyncSandbox:
        """Claim a sandbox that is released when it was not used for ``idle`` seconds."""
        with on_behalf_of_session(self.id):
            sandbox = await self._client.sandbox(
                pool or await self._pool(),
                timeout=timeout,
                labels=metadata.labels,
                pod_labels=metadata.pod_labels,
                pod_annotations=metadata.pod_annotations,
            )
        held = self._held[sandbox.name] = _Held(sandbox, self._idle if idle is None else idle)
        self._rest(held)
        return sandbox

    @asynccontextmanager
    async def use(self, name: str | None = None) -> AsyncIterator[AsyncSandbox]:
        """A sandbox of this session, which is not idle during the block. Without a name it is the session's own one,
        made by its first use. Raises ``UnknownName`` for those of others."""
        held = self._get(name) if name is not None else await self._get_own()
        held.uses += 1
        if held.expiry is not None:
            held.expiry.cancel()
        with on_behalf_of_session(self.id):
            try:
                yield held.sandbox
            except SandboxLost:
                self._forget(held)
                await self._client.release(held.sandbox)
                raise
            finally:
                held.uses -= 1
                self._rest(held)

    async def release(self, name: str) -> None:
        """Release a sandbox. Raises ``UnknownName``."""
        held = self._get(name)
        self._forget(held)
        await self._release(held)

    async def close(self) -> None:
        """Release all sandboxes."""
        held = list(self._held.values())
        for each in held:
            self._forget(each)
        await asyncio.gather(*map(self._release, held), return_exceptions=True)

    def _get(self, name: str) -> _Held:
        if name not in self._held:
            raise UnknownName(f'this session has no sandbox "{name}"', "Make one with create_sandbox.")
        return self._held[name]

    async def _get_own(self) -> _Held:
        if not self._is_lasting:
            raise UnknownName(
                "name a sandbox: this client has no session that could keep one",
                "Make one with create_sandbox and pass its sandbox_claim_name.",
            )
        async with self._choosing:
            if self._own not in self._held:
                self._own = (await self.create()).name
            return self._held[self._own]

    def _forget(self, held: _Held) -> None:
        self._held.pop(held.sandbox.name, None)
        if held.expiry is not None:
            held.expiry.cancel()

    async def _release(self, held: _Held) -> None:
        with on_behalf_of_session(self.id):
            await held.sandbox.release()

    def _rest(self, held: _Held) -> None:
        """Begin to count the time that a sandbox is not used."""
        if held.idle is not None and not held.uses and held.sandbox.name in self._held:
            held.expiry = asyncio.get_running_loop().call_later(held.idle, self._expire, held)

    def _expire(self, held: _Held) -> None:
        self._forget(held)
        task = asyncio.create_task(_quietly(self._release(held)), name=f"release {held.sandbox.name}")
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)


async def _quietly(releasing: Awaitable[None]) -> None:
    try:
        await releasing
    except ServiceError:
        return  # the lease is no longer renewed, so the claim ends anyway


class Sessions:
    """All sessions of a server, on one client.

    The SDK tells nothing of an HTTP session that it ends because it was idle. So a session is forgotten when it has no
    sandbox and no call: the timers of its sandboxes and its calls are all that refer to it."""

    def __init__(self, client: AsyncClient, pool: PoolChoice) -> None:
        self.client = client
        self._pool = pool
        self._releasing: set[asyncio.Task[None]] = set()
        self._sessions: WeakValueDictionary[str, Session] = WeakValueDictionary()
        self._local = Session(client, pool, client.id, None, self._releasing, is_lasting=True)

    def __len__(self) -> int:
        """The number of HTTP sessions that have a sandbox or a call."""
        return len(self._sessions)

    def local(self) -> Session:
        """The session of the client at standard input and output."""
        return self._local

    def over_http(self, id: str) -> Session:  # noqa: A002
        """The HTTP session with this ID, which is a secret: the audit log has a hash of it."""
        shown = sha256(id.encode()).hexdigest()[:_ID_LETTERS]
        return self._over_http(f"id:{id}", shown, HTTP_IDLE, is_lasting=True)

    def shared(self) -> Session:
        """The session of all HTTP clients that have none."""
        return self._over_http("shared", "shared", SESSIONLESS_IDLE, is_lasting=False)

    async def end(self, id: str) -> None:  # noqa: A002
        """Release the sandboxes of an HTTP session that has ended."""
        if (session := self._sessions.pop(f"id:{id}", None)) is not None:
            await session.close()

    async def close(self) -> None:
        """Release all sandboxes."""
        sessions = [self._local, *self._sessions.values()]
        self._sessions.clear()
        await asyncio.gather(*(session.close() for session in sessions), *self._releasing, return_exceptions=True)

    def _over_http(self, key: str, id: str, idle: float, *, is_lasting: bool) -> Session:  # noqa: A002
        session = self._sessions.get(key)
        if session is None:
            session = Session(self.client, self._pool, id, idle, self._releasing, is_lasting=is_lasting)
            self._sessions[key] = session
        return session
