"""The control plane: create, find, list, extend, pause and kill the sandboxes of one tenant.

A tenant sees only what its own key made. What E2B offers and we do not is refused with a message that says so, rather
than accepted and not done.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from sandpool.api.times import timestamp
from sandpool.e2b import documents
from sandpool.e2b.claims import (
    KEY_LABEL,
    REQUEST_ANNOTATION,
    ClaimCache,
    SandboxClaim,
    SandboxRequest,
    checked_texts,
    new_id,
    repeatable_id,
)
from sandpool.e2b.errors import Refusal
from sandpool.e2b.keys import ApiKey
from sandpool.e2b.options import EndpointOptions
from sandpool.e2b.running import RunningSandbox, RunningSandboxes
from sandpool.engine.clock import Clock
from sandpool.kube.errors import ApiError, NotFound
from sandpool.service.commands import Command
from sandpool.service.errors import NameTaken, NotRunning, ServiceError, UnknownName
from sandpool.service.sandboxes import Sandbox, Sandboxes

_MAX_METADATA: Final = 64 << 10
_MAX_VARIABLES: Final = 256 << 10
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
_VARIABLE: Final = re.compile(r"[^=\0]+")
_IDEMPOTENCY_KEY: Final = re.compile(r"[a-z0-9-]{1,255}")
#: Fields of a creation that the endpoint does not serve, and why.
_UNSERVED: Final[Mapping[str, str]] = {
    "mcp": "MCP servers are not started in sandboxes",
    "iam": "sandboxes have no workload identity",
    "volumeMounts": "volumes belong to the template of a pool",
    "autoPause": "a sandbox cannot be paused at its timeout, it is deleted then",
}
_PAUSE_TIMEOUT: Final = 45.0
# Two samples make a rate.
_SAMPLE_SECONDS: Final = 0.5
_DISK: Final = 'df -kP . | { read -r _; read -r _ total used _; echo "$total $used"; }'


class ControlPlane:
    """The sandboxes of all tenants; every call names the key of the one that asks."""

    def __init__(
        self,
        claims: ClaimCache,
        running: RunningSandboxes,
        secret: bytes,
        options: EndpointOptions,
        clock: Clock,
    ) -> None:
        self.claims = claims
        self.running = running
        self.secret = secret
        self.options = options
        self.clock = clock
        self._creating: defaultdict[str, set[str]] = defaultdict(set)  # by key: IDs, whether the cache has them or not

    async def create(self, key: ApiKey, body: Mapping[str, Any], idempotency_key: str = "") -> dict[str, Any]:
        """Claim a sandbox and describe it."""
        request, variables = _request(body)
        seconds = self._seconds(body.get("timeout", self.options.default_timeout))
        pool = self.options.pool_of(request.template)
        if not _NAME.fullmatch(pool):
            raise Refusal(404, f"there is no template {request.template!r}: templates are the names of pools")
        if idempotency_key and not _IDEMPOTENCY_KEY.fullmatch(idempotency_key):
            raise Refusal(400, "an idempotency key has up to 255 lowercase letters, digits and hyphens")
        sandbox_id = repeatable_id(self.secret, key.id, idempotency_key) if idempotency_key else new_id()
        creating = self._creating[key.id]
        found = self._find(key, sandbox_id) if idempotency_key else None
        # One that is being created is waited for below; a paused one stays paused.
        if found is not None and (found.claim.ready or (found.was_handed_out and sandbox_id not in creating)):
            return self._created(found)
        if len(creating.union(each.id for each in self.claims.of_key(key.id, key.namespace))) >= key.max_sandboxes:
            raise Refusal(429, f"the API key has {key.max_sandboxes} sandboxes, which is its quota: kill one first")
        creating.add(sandbox_id)
        try:
            claim = await self._claim(key, sandbox_id, pool, request, seconds)
        finally:
            creating.discard(sandbox_id)
        if variables:
            try:
                await self.running.of(claim).keep_variables(variables)
            except BaseException:
                await asyncio.shield(asyncio.ensure_future(self._delete(claim)))
                raise
        return self._created(claim)

    async def connect(self, key: ApiKey, sandbox_id: str, body: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        """Resume a sandbox if it is paused, and let it live at least as long as asked. Returns the status too."""
        claim = self._of(key, sandbox_id)
        seconds = self._seconds(body.get("timeout", self.options.default_timeout))
        status = 200
        sandbox = await self._sandbox(claim)
        if sandbox is not None and sandbox.suspended:
            await self._set_mode(claim, suspended=False)
            status = 201
        if self.clock.now() + timedelta(seconds=seconds) > claim.end:
            claim = await self._extend(claim, seconds)
        return status, self._created(claim)

    async def page(self, key: ApiKey, query: Mapping[str, str]) -> tuple[Sequence[Any], str]:
        """A page of the sandboxes of a tenant, and the token of the next page."""
        wanted = documents.ListQuery.of(query)
        sandboxes: dict[str, Sandbox] = {}
        claims = self.claims.of_key(key.id, key.namespace)
        if claims:
            found = await self._sandboxes(key.namespace).list()
            sandboxes = {each.claim: each for each in found if each.claim}
        handed_out = [claim for claim in claims if claim.was_handed_out]
        return documents.page(wanted, [(claim, sandboxes.get(claim.id)) for claim in handed_out])

    async def info(self, key: ApiKey, sandbox_id: str) -> dict[str, Any]:
        """Everything about one sandbox."""
        claim = self._of(key, sandbox_id)
        sandbox = await self._sandbox(claim)
        return documents.detail(claim, sandbox, self.running.tokens(claim), self.options.domain)

    async def kill(self, key: ApiKey, sandbox_id: str) -> None:
        """Delete a sandbox."""
        await self._delete(self._of(key, sandbox_id))

    async def set_timeout(self, key: ApiKey, sandbox_id: str, seconds: Any) -> None:
        """Let a sandbox live for a time from now, longer or shorter than before."""
        await self._extend(self._of(key, sandbox_id), self._seconds(seconds))

    async def refresh(self, key: ApiKey, sandbox_id: str, seconds: Any) -> None:
        """Let a sandbox live at least for a time from now."""
        claim, seconds = self._of(key, sandbox_id), self._seconds(seconds)
        if self.clock.now() + timedelta(seconds=seconds) > claim.end:
            await self._extend(claim, seconds)

    async def pause(self, key: ApiKey, sandbox_id: str, body: Mapping[str, Any]) -> None:
        """Suspend a sandbox. Only volumes are kept, so nothing else is promised: the client has to ask for a pause
        without memory, and the sandbox must have a volume."""
        claim = self._of(key, sandbox_id)
        sandbox = await self._sandbox(claim)
        if sandbox is not None and sandbox.suspended:
            raise Refusal(409, f"the sandbox {sandbox_id} is paused already")
        if body.get("memory") is not False:
            raise Refusal(
                400,
                'a pause does not keep memory: pause with mode="filesystem", which keeps the volumes of the sandbox',
            )
        if sandbox is None or not sandbox.object["spec"].get("volumeClaimTemplates"):
            raise Refusal(400, "a pause keeps volumes only, and this sandbox has none: all its files would be lost")
        await self._set_mode(claim, suspended=True)

    async def metrics(self, key: ApiKey, sandbox_id: str) -> list[dict[str, Any]]:
        """The use of CPU, memory and disk now: there is no history."""
        claim = self._of(key, sandbox_id)
        running = self.running.of(claim)
        sandbox, usage = await running.sandbox(), running.service.usage
        pod = (sandbox.namespace, sandbox.pod)
        before = await usage.sample({sandbox.node})
        await self.clock.sleep(_SAMPLE_SECONDS)
        now = await usage.sample({sandbox.node})
        if (found := now.pods.get(pod)) is None:
            return []
        limits = documents.limits(sandbox)
        total, used = await self._disk(running, sandbox)
        cores = now.cores(pod, before) or 0.0
        return [
            {
                "timestamp": documents.timestamp(found.at),
                "timestampUnix": int(found.at.timestamp()),
                "cpuCount": limits.cpus,
                "cpuUsedPct": round(100 * cores / (limits.cpus or 1), 2),
                "memUsed": found.memory,
                "memTotal": limits.memory,
                "memCache": 0,
                "diskUsed": used,
                "diskTotal": limits.disk or total,
            }
        ]

    # -- implementation ----------------------------------------------------------------------------------------------

    async def _claim(
        self, key: ApiKey, sandbox_id: str, pool: str, request: SandboxRequest, seconds: int
    ) -> SandboxClaim:
        claims = self.claims.claims(key.namespace)
        try:
            made = await claims.create(
                pool,
                name=sandbox_id,
                shutdown_time=timestamp(self.clock.now() + timedelta(seconds=seconds)),
                own_labels={KEY_LABEL: key.id},
                own_annotations={REQUEST_ANNOTATION: request.to_annotation()},
                timeout=self.options.create_timeout,
            )
        except NameTaken:  # another request with the same idempotency key
            made = await claims.wait_ready(sandbox_id, self.options.create_timeout)
            if (made.object["metadata"].get("labels") or {}).get(KEY_LABEL) != key.id:
                raise Refusal(409, "the idempotency key cannot be used") from None
        return self.claims.record(made.object)

    async def _extend(self, claim: SandboxClaim, seconds: int) -> SandboxClaim:
        end = timestamp(self.clock.now() + timedelta(seconds=seconds))
        try:
            changed = await self.claims.claims(claim.claim.namespace).set_end(claim.claim, end)
        except UnknownName:
            raise _unknown(claim.id) from None
        return self.claims.record(changed.object)

    async def _delete(self, claim: SandboxClaim) -> None:
        self.claims.forget(claim, await self.claims.claims(claim.claim.namespace).delete(claim.claim))

    async def _set_mode(self, claim: SandboxClaim, *, suspended: bool) -> None:
        sandboxes, name = self._sandboxes(claim.claim.namespace), f"claim/{claim.id}"
        sandbox = await (sandboxes.suspend(name) if suspended else sandboxes.resume(name))
        running = self.running.of(claim)
        running.forget()
        await sandboxes.wait(sandbox.name, suspended=suspended, timeout=_PAUSE_TIMEOUT)
        running.forget()

    async def _sandbox(self, claim: SandboxClaim) -> Sandbox | None:
        try:
            return await self._sandboxes(claim.claim.namespace).get(claim.claim.sandbox)
        except (ServiceError, NotFound) as error:
            if isinstance(error, NotRunning):
                return None
            raise _unknown(claim.id) from None

    async def _disk(self, running: RunningSandbox, sandbox: Sandbox) -> tuple[int, int]:
        try:
            done = await running.service.commands.run(sandbox, Command(("sh", "-c", _DISK)), max_output=200)
            total, used = (int(word) << 10 for word in done.stdout.split())
        except (ServiceError, ApiError, OSError, ValueError):
            return 0, 0
        return total, used

    def _sandboxes(self, namespace: str) -> Sandboxes:
        return Sandboxes(self.claims.client, self.running.pods, namespace)

    def _created(self, claim: SandboxClaim) -> dict[str, Any]:
        return documents.created(claim, self.running.tokens(claim), self.options.domain)

    def _find(self, key: ApiKey, sandbox_id: str) -> SandboxClaim | None:
        return self.claims.find_of(key.id, key.namespace, sandbox_id)

    def _of(self, key: ApiKey, sandbox_id: str) -> SandboxClaim:
        """The claim of a tenant. Those of other tenants do not exist for it."""
        claim = self._find(key, sandbox_id)
        if claim is None or not claim.was_handed_out:
            raise _unknown(sandbox_id)
        return claim

    def _seconds(self, given: Any) -> int:
        if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given <= self.options.max_timeout:
            raise Refusal(400, f"the timeout must be a number of seconds up to {self.options.max_timeout}")
        return given


def _unknown(sandbox_id: str) -> Refusal:
    return Refusal(404, f"there is no sandbox {sandbox_id[:64]}")


def _request(body: Mapping[str, Any]) -> tuple[SandboxRequest, dict[str, str]]:
    """The request of a creation, and the environment variables. Raises ``Refusal``."""
    template = body.get("templateID")
    if not isinstance(template, str) or not template:
        raise Refusal(400, "templateID must be the name of a template")
    for name, reason in _UNSERVED.items():
        if body.get(name):
            raise Refusal(400, f"{name} is not supported: {reason}")
    if body.get("allow_internet_access") is False:
        raise Refusal(
            400, "allow_internet_access=False is not supported: the template of the pool says what sandboxes reach"
        )
    network = body.get("network")
    network = network if isinstance(network, dict) else {}
    if unserved := [name for name, value in network.items() if value and name != "allowPublicTraffic"]:
        raise Refusal(400, f"network.{unserved[0]} is not supported: the template says what sandboxes reach")
    try:
        metadata = checked_texts(body.get("metadata"), "metadata", _MAX_METADATA)
        variables = checked_texts(body.get("envVars"), "envVars", _MAX_VARIABLES)
    except ValueError as error:
        raise Refusal(400, str(error)) from None
    for name, value in variables.items():
        if not _VARIABLE.fullmatch(name) or "\0" in value:
            raise Refusal(400, f"envVars has a name or a value that cannot be one: {name!r}")
    public = network.get("allowPublicTraffic") is not False
    return SandboxRequest(template, metadata, public, has_variables=bool(variables)), variables
