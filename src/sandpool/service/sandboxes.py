"""Sandboxes by name: the one place that leads from the name of a claim or a sandbox to its pod."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing, suppress
from typing import Any, Final, NamedTuple, Self, cast

from sandpool.api import conditions as api
from sandpool.api import labels
from sandpool.api.conditions import condition_of
from sandpool.api.kinds import POD, SANDBOX, SANDBOX_CLAIM, SANDBOX_WARM_POOL
from sandpool.api.resource import Key, Object, SharedObject
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import ApiError, BadRequest, Forbidden, NotFound, ServiceUnavailable
from sandpool.kube.pod_client import LogOptions, PodClient
from sandpool.service.errors import NotReadyInTime, NotRunning, UnknownName, unknown_name
from sandpool.service.handover import states, until_handed_over

_SUSPENDED: Final = "Suspended"
_RUNNING: Final = "Running"
_DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"


#: Resumes a sandbox that sleeps, given by namespace and name, and returns when it is ready. Raises ``WakeFailed``.
Wake = Callable[[str, str], Awaitable[object]]


class Sandbox(NamedTuple):
    """A sandbox as users see it. ``claim`` is empty for a sandbox without a claim; ``container`` is the one that
    commands run in; ``launch`` is warm, cold or empty."""

    name: str
    namespace: str
    claim: str
    pool: str  # the pool that it is an idle member of; empty if it is claimed
    pod: str
    container: str
    node: str
    ready: bool
    reason: str
    message: str
    suspended: bool
    asleep: bool  # suspended because it was not used: the next request resumes it
    launch: str
    created: str
    object: SharedObject

    @classmethod
    def from_object(cls, sandbox: SharedObject) -> Self:
        metadata, spec, status = sandbox["metadata"], sandbox.get("spec") or {}, sandbox.get("status") or {}
        annotations, own_labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
        ready = api.find_condition(status.get("conditions") or [], api.READY) or {}
        owner: Object = next((each for each in metadata.get("ownerReferences") or () if each.get("controller")), {})
        return cls(
            name=metadata["name"],
            namespace=metadata.get("namespace", ""),
            claim=owner.get("name", "") if owner.get("kind") == SANDBOX_CLAIM.kind else "",
            pool=owner.get("name", "") if owner.get("kind") == SANDBOX_WARM_POOL.kind else "",
            pod=annotations.get(labels.POD_NAME) or metadata["name"],
            container=_container(spec.get("podTemplate") or {}),
            node=status.get("nodeName", ""),
            ready=ready.get("status") == api.TRUE,
            reason=ready.get("reason", ""),
            message=ready.get("message", ""),
            suspended=spec.get("operatingMode") == _SUSPENDED,
            asleep=spec.get("operatingMode") == _SUSPENDED and labels.ASLEEP_SINCE in annotations,
            launch=own_labels.get(labels.LAUNCH_TYPE, ""),
            created=metadata.get("creationTimestamp", ""),
            object=sandbox,
        )

    @property
    def may_freeze(self) -> bool:
        """Whether it is frozen when it is not used for some time."""
        metadata = ((self.object.get("spec") or {}).get("podTemplate") or {}).get("metadata") or {}
        return self.ready and not self.suspended and labels.IDLE_FREEZE_AFTER in (metadata.get("annotations") or {})

    @property
    def shown_name(self) -> str:
        """The name that the user knows it by."""
        return self.claim or self.name


def _container(template: Object) -> str:
    annotations = (template.get("metadata") or {}).get("annotations") or {}
    containers = (template.get("spec") or {}).get("containers") or [{}]
    return str(annotations.get(_DEFAULT_CONTAINER) or containers[0].get("name", ""))


class Sandboxes:
    """The sandboxes of a namespace."""

    def __init__(self, client: Client, pods: PodClient, namespace: str) -> None:
        self.client = client
        self.pods = pods
        self.namespace = namespace

    async def find(self, name: str) -> Sandbox:
        """The sandbox of a claim, or the sandbox with this name. ``claim/NAME`` and ``sandbox/NAME`` say which.

        Raises ``UnknownName`` with close matches, and ``NotRunning`` for a claim that has no sandbox yet.
        """
        kind, slash, rest = name.partition("/")
        if slash and kind in ("claim", "sandboxclaim"):
            return await self._of_claim(rest, await self._get_claim(rest))
        if slash and kind == "sandbox":
            return await self.get(rest)
        if not name or slash:
            raise UnknownName(f'"{name}" is not a name', "Use the name of a claim: sandpool ls shows them.")
        try:
            claim = await self.client.get(SANDBOX_CLAIM, name, self.namespace)
        except NotFound:
            try:
                return Sandbox.from_object(await self.client.get(SANDBOX, name, self.namespace))
            except NotFound:
                raise await self._unknown(name) from None
        return await self._of_claim(name, claim)

    async def get(self, name: str) -> Sandbox:
        """The sandbox with this name."""
        try:
            return Sandbox.from_object(await self.client.get(SANDBOX, name, self.namespace))
        except NotFound:
            listed = await self.client.list(SANDBOX, self.namespace)
            known = [each["metadata"]["name"] for each in listed["items"]]
            raise unknown_name("sandbox", name, self.namespace, known, "List them with: sandpool ls -a") from None

    async def list(self, *, all_namespaces: bool = False) -> tuple[Sandbox, ...]:
        """All sandboxes, those of pools included."""
        listed = await self.client.list(SANDBOX, None if all_namespaces else self.namespace)
        return tuple(Sandbox.from_object(each) for each in listed["items"])

    async def frozen(self, sandboxes: Iterable[Sandbox]) -> frozenset[tuple[str, str]]:
        """Which of the sandboxes are frozen because they were not used, by namespace and name. Their pods show it, and
        are read only if one may be frozen. Empty for a user who may not read pods."""
        may_freeze = {(each.namespace, each.pod): (each.namespace, each.name) for each in sandboxes if each.may_freeze}
        found = set[tuple[str, str]]()
        for namespace in {namespace for namespace, _ in may_freeze}:
            with suppress(Forbidden):
                for pod in (await self.client.list(POD, namespace))["items"]:
                    key, condition = (namespace, pod["metadata"]["name"]), condition_of(pod, api.POD_FROZEN)
                    if key in may_freeze and condition is not None and condition["status"] == api.TRUE:
                        found.add(may_freeze[key])
        return frozenset(found)

    async def logs(self, sandbox: Sandbox, options: LogOptions) -> AsyncIterator[bytes]:
        """Yield the log of the sandbox's main process."""
        try:
            async with aclosing(cast("Any", self.pods.logs(sandbox.namespace, sandbox.pod, options))) as pieces:
                async for piece in pieces:
                    yield piece
        except (NotFound, ServiceUnavailable, BadRequest) as error:
            raise not_running(sandbox, error) from error

    async def suspend(self, name: str) -> Sandbox:
        """Ask for the sandbox to be suspended: its processes end, its volumes stay."""
        return await self._set_mode(name, _SUSPENDED)

    async def resume(self, name: str) -> Sandbox:
        """Ask for a suspended sandbox to run again."""
        return await self._set_mode(name, _RUNNING)

    async def wait(self, name: str, *, suspended: bool, timeout: float) -> Sandbox:
        """Wait until a sandbox (by its own name) is suspended, or is ready and has the variables of its claim. Raises
        ``NotReadyInTime`` and ``NotHandedOver``."""
        last: Sandbox | None = None
        message = ""

        def note(claim: SharedObject) -> None:
            nonlocal message
            message = (condition_of(claim, api.READY) or {}).get("message", "")

        try:
            async with asyncio.timeout(timeout):
                async for last in self._states(name):
                    condition = api.find_condition(last.object.get("status", {}).get("conditions", []), api.SUSPENDED)
                    is_suspended = condition is not None and condition["status"] == api.TRUE
                    message = last.message
                    if suspended and is_suspended:
                        return last
                    if not suspended and last.ready and not is_suspended:
                        await until_handed_over(self.client, last.object, note)
                        return last
        except TimeoutError:
            pass
        state = f": {message}" if message else ""
        wanted = "suspended" if suspended else "ready"
        raise NotReadyInTime(f'sandbox "{name}" was not {wanted} within {timeout:g} s{state}')

    async def _states(self, name: str) -> AsyncIterator[Sandbox]:
        following = states(self.client, SANDBOX, Key(self.namespace, name), None)
        async with aclosing(cast("Any", following)) as stream:
            async for each in stream:
                if each is None:
                    raise NotRunning(f'sandbox "{name}" was deleted while it was waited for')
                yield Sandbox.from_object(each)

    async def _set_mode(self, name: str, mode: str) -> Sandbox:
        sandbox = await self.find(name)
        # Without the mark: the user decides from now on, and no request resumes what the user has suspended.
        patch = MergePatch({"metadata": {"annotations": {labels.ASLEEP_SINCE: None}}, "spec": {"operatingMode": mode}})
        return Sandbox.from_object(await self.client.patch(SANDBOX, sandbox.name, patch, sandbox.namespace))

    async def _get_claim(self, name: str) -> SharedObject:
        try:
            return await self.client.get(SANDBOX_CLAIM, name, self.namespace)
        except NotFound:
            raise await self._unknown(name) from None

    async def _of_claim(self, name: str, claim: SharedObject) -> Sandbox:
        status = claim.get("status") or {}
        sandbox = (status.get("sandbox") or {}).get("name")
        if not sandbox:
            ready = api.find_condition(status.get("conditions") or [], api.READY) or {}
            state = f": {ready['message']}" if ready.get("message") else ""
            raise NotRunning(
                f'claim "{name}" has no sandbox yet{state}', f"Find out more with: sandpool why claim {name}"
            )
        try:
            found = Sandbox.from_object(await self.client.get(SANDBOX, sandbox, self.namespace))
        except NotFound:
            raise NotRunning(
                f'the sandbox "{sandbox}" of claim "{name}" is gone', f"Release the claim with: sandpool release {name}"
            ) from None
        return found

    async def _unknown(self, name: str) -> UnknownName:
        claims = await self.client.list(SANDBOX_CLAIM, self.namespace)
        known = [each["metadata"]["name"] for each in claims["items"]]
        advice = "List the claims with: sandpool ls" if known else "Make one with: sandpool claim"
        return unknown_name("claim or sandbox", name, self.namespace, known, advice)


def not_running(sandbox: Sandbox, error: ApiError) -> NotRunning:
    """Explain why the pod of a sandbox cannot be reached."""
    name = sandbox.shown_name
    if sandbox.asleep:
        return NotRunning(f'sandbox "{name}" is asleep, and was not resumed: {error}')
    if sandbox.suspended:
        return NotRunning(f'sandbox "{name}" is suspended', f"Resume it with: sandpool resume {name}")
    if not sandbox.ready:
        state = sandbox.message or "it is being started"
        return NotRunning(f'sandbox "{name}" is not running: {state}', f"Find out more with: sandpool why {name}")
    return NotRunning(f'sandbox "{name}" cannot be reached: {error}', f"Find out more with: sandpool why {name}")
