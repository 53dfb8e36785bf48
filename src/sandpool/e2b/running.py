"""Sandboxes that clients use now: what the endpoint holds for each of them, in memory.

It is made by the first request to a sandbox and closed when its claim is gone. What must outlive the endpoint is in the
claim (``claims``), so another endpoint, or this one after a restart, serves the sandbox as well. Only running commands,
sessions and watches are lost with the endpoint.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from sandpool.e2b.access import Tokens, tokens_of
from sandpool.e2b.claims import ClaimCache, SandboxClaim
from sandpool.e2b.errors import Refusal, SandboxGone, SandboxUnreachable
from sandpool.e2b.interpreter import Contexts
from sandpool.e2b.options import EndpointOptions
from sandpool.e2b.port_proxy import ForwardedPorts
from sandpool.e2b.processes import ProcessTable
from sandpool.e2b.watchers import Watchers
from sandpool.kube.client import Client
from sandpool.kube.pod_client import PodClient
from sandpool.service.commands import Command
from sandpool.service.errors import NotRunning, UnknownName
from sandpool.service.sandboxes import Sandbox
from sandpool.service.service import Service

_VARIABLES_SUFFIX: Final = "-variables"
_VARIABLES: Final = "variables"  # the name in the Secret
# Not every image has a name for its user.
_USER: Final = "id -un 2>/dev/null; id -u"


class RunningSandbox:
    """One sandbox: how to reach it, and what runs in it on behalf of clients."""

    def __init__(self, claim: SandboxClaim, service: Service, tokens: Tokens, options: EndpointOptions) -> None:
        self.id = claim.id
        self.uid = claim.claim.uid
        self.key = claim.key
        self.claim = claim.claim
        self.request = claim.request
        self.service = service
        self.tokens = tokens
        self.processes = ProcessTable(self, options.max_processes)
        self.watchers = Watchers(self, options.max_watchers)
        self.contexts = Contexts(self, options.max_contexts)
        self.ports = ForwardedPorts(self, options.max_ports, options.port_directory)
        self._sandbox: Sandbox | None = None
        self._variables: dict[str, str] | None = None
        self._users: tuple[str, ...] = ()
        self._lock = asyncio.Lock()

    async def sandbox(self) -> Sandbox:
        """The sandbox behind the claim. Raises ``SandboxGone`` if it is paused or has ended."""
        async with self._lock:
            if self._sandbox is None:
                with self.reached():
                    found = await self.service.sandboxes.find(f"claim/{self.id}")
                if found.suspended:
                    raise SandboxGone(self.id)
                self._sandbox = found
            return self._sandbox

    async def check_user(self, user: str) -> None:
        """Raise ``Refusal`` unless the sandbox runs as this user. A sandbox has one, which clients know as "user"."""
        if user in ("", "user"):
            return
        sandbox = await self.sandbox()
        if not self._users:
            with self.reached():
                done = await self.service.commands.run(sandbox, Command(("sh", "-c", _USER)), max_output=1000)
            self._users = tuple(done.stdout.decode(errors="replace").split())
        if user not in self._users:
            known = " or ".join(repr(each) for each in ("user", *self._users))
            raise Refusal(400, f"the sandbox has one user, {known}; it cannot be {user!r}")

    async def variables(self) -> dict[str, str]:
        """The environment variables that every command gets."""
        if not self.request.has_variables:
            return {}
        async with self._lock:
            if self._variables is None:
                kept = await self.service.claims.read_secret(self.claim, _VARIABLES_SUFFIX)
                lines = kept.get(_VARIABLES, "").split("\0")
                self._variables = dict(line.split("=", 1) for line in lines if "=" in line)
            return self._variables

    async def keep_variables(self, variables: dict[str, str]) -> None:
        """Keep the variables beside the claim, for this endpoint and others."""
        document = "\0".join(f"{name}={value}" for name, value in variables.items())
        await self.service.claims.keep_secret(self.claim, _VARIABLES_SUFFIX, {_VARIABLES: document})
        self._variables = dict(variables)

    def forget(self) -> None:
        """Read the sandbox again when it is used next."""
        self._sandbox = None

    def reached(self) -> _Reached:
        """A context in which errors of a sandbox that cannot be reached are answered as clients expect."""
        return _Reached(self)

    async def close(self) -> None:
        """End everything that runs on behalf of clients."""
        await asyncio.gather(
            self.processes.close(),
            self.watchers.close(),
            self.contexts.close(),
            self.ports.close(),
            return_exceptions=True,
        )


class _Reached:
    def __init__(self, running: RunningSandbox) -> None:
        self.running = running

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, NotRunning):
            self.running.forget()
            raise SandboxUnreachable(self.running.id, error.message) from error
        if isinstance(error, UnknownName):
            raise SandboxGone(self.running.id) from error


class RunningSandboxes:
    """All sandboxes that are used now, by the UIDs of their claims."""

    def __init__(
        self, client: Client, pods: PodClient, claims: ClaimCache, secret: bytes, options: EndpointOptions
    ) -> None:
        self.client = client
        self.pods = pods
        self.claims = claims
        self.secret = secret
        self.options = options
        self._running: dict[str, RunningSandbox] = {}
        self._closing: set[asyncio.Task[None]] = set()
        claims.on_end(self._ended)

    def tokens(self, claim: SandboxClaim) -> Tokens:
        return tokens_of(self.secret, claim.claim.uid)

    def get(self, sandbox_id: str) -> RunningSandbox:
        """The sandbox with an ID. Raises ``SandboxGone``."""
        claim = self.claims.find(sandbox_id)
        if claim is None:
            raise SandboxGone(sandbox_id[:64])
        return self.of(claim)

    def of(self, claim: SandboxClaim) -> RunningSandbox:
        """The sandbox of a claim."""
        running = self._running.get(claim.claim.uid)
        if running is None:
            service = Service(self.client, self.pods, claim.claim.namespace)
            running = RunningSandbox(claim, service, self.tokens(claim), self.options)
            self._running[claim.claim.uid] = running
        return running

    async def close(self) -> None:
        running, self._running = list(self._running.values()), {}
        await asyncio.gather(*(each.close() for each in running), *self._closing, return_exceptions=True)

    def _ended(self, uid: str) -> None:
        running = self._running.pop(uid, None)
        if running is not None:
            task = asyncio.create_task(running.close(), name=f"close {running.id}")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
