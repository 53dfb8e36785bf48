"""Claims: create one, wait until it has a sandbox, release it.

Waiting is a watch on the one claim. It is opened while the claim is being created, so that both connections are
established at the same time.
"""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any, Final, NamedTuple, Self, cast

from sandpool.api import conditions as api
from sandpool.api import labels
from sandpool.api.kinds import SANDBOX_CLAIM, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL, SECRET
from sandpool.api.resource import Object, SharedObject
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import AlreadyExists, ApiError, Conflict, Expired, Forbidden, Invalid, NotFound
from sandpool.kube.transport import WatchEvent
from sandpool.service.errors import ClaimFailed, ClaimGone, NameTaken, NotReadyInTime, unknown_name

#: Seconds to wait for a sandbox: a warm one takes milliseconds, a cold one may have to pull an image.
READY_TIMEOUT: Final = 120.0

# Reasons that do not go away by themselves.
_FINAL: Final = frozenset(
    {
        api.ENV_VARS_INJECTION_REJECTED,
        api.INVALID_METADATA,
        api.VOLUME_CLAIM_TEMPLATES_ERROR,
    }
)
_EXPIRED: Final = frozenset({api.CLAIM_EXPIRED[0], api.CLAIMED_SANDBOX_EXPIRED[0]})
_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"

#: The events of the claim with a name, after a resourceVersion if that is known. By default a watch for each claim.
ClaimEvents = Callable[[str, "str | None"], AsyncIterator[WatchEvent]]


class Claim(NamedTuple):
    """A claim as users see it. ``sandbox`` is empty until one is assigned; ``reason`` and ``message`` are those of the
    condition Ready."""

    name: str
    namespace: str
    pool: str
    sandbox: str
    ready: bool
    reason: str
    message: str
    created: str  # RFC 3339
    uid: str
    object: SharedObject

    @classmethod
    def from_object(cls, claim: SharedObject) -> Self:
        metadata, spec, status = claim["metadata"], claim.get("spec") or {}, claim.get("status") or {}
        ready = api.find_condition(status.get("conditions") or [], api.READY) or {}
        return cls(
            name=metadata["name"],
            namespace=metadata.get("namespace", ""),
            pool=(spec.get("warmPoolRef") or {}).get("name", ""),
            sandbox=(status.get("sandbox") or {}).get("name", ""),
            ready=ready.get("status") == api.TRUE,
            reason=ready.get("reason", ""),
            message=ready.get("message", ""),
            created=metadata.get("creationTimestamp", ""),
            uid=metadata.get("uid", ""),
            object=claim,
        )


class Claims:
    """The claims of a namespace."""

    def __init__(self, client: Client, namespace: str, events: ClaimEvents | None = None) -> None:
        self.client = client
        self.namespace = namespace
        self._events = events or self._watch_one

    async def create(
        self,
        pool: str,
        *,
        name: str | None = None,
        prefix: str = "",
        shutdown_time: str | None = None,
        own_labels: Mapping[str, str] | None = None,
        own_annotations: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        pod_labels: Mapping[str, str] | None = None,
        pod_annotations: Mapping[str, str] | None = None,
        timeout: float = READY_TIMEOUT,
        created: Callable[[SharedObject], Awaitable[None]] | None = None,
        undo: Callable[[SharedObject], Awaitable[None]] | None = None,
    ) -> Claim:
        """Create a claim and wait until its sandbox is ready. A claim that fails or is cancelled is deleted,
        or given to ``undo``.

        Without a ``name`` the claim gets a random one that begins with ``prefix``, by default the name of the pool.
        ``shutdown_time`` (RFC 3339) deletes the claim and its sandbox at that time. ``env`` are variables of the
        sandbox, if the template allows them; ``pod_labels`` and ``pod_annotations`` are for its pod. ``created`` is
        called once, as soon as the claim is known to exist, because it may have to wait for its sandbox beyond its
        ``shutdown_time``; it must not fail. Raises ``UnknownName`` for a pool that does not exist, ``ClaimFailed``,
        ``NotReadyInTime`` and ``NameTaken``.
        """
        chosen = name or random_name(prefix or pool)
        spec: dict[str, Any] = {"warmPoolRef": {"name": pool}}
        if shutdown_time is not None:
            spec["lifecycle"] = {"shutdownTime": shutdown_time, "shutdownPolicy": "Delete"}
        if env:
            spec["env"] = [{"name": variable, "value": value} for variable, value in env.items()]
        for_pod = {"labels": pod_labels, "annotations": pod_annotations}
        if metadata := {name: dict(values) for name, values in for_pod.items() if values}:
            spec["additionalPodMetadata"] = metadata
        claim: Object = {
            "apiVersion": SANDBOX_CLAIM.api_version,
            "kind": SANDBOX_CLAIM.kind,
            "metadata": {
                "name": chosen,
                **({"labels": dict(own_labels)} if own_labels else {}),
                **({"annotations": dict(own_annotations)} if own_annotations else {}),
            },
            "spec": spec,
        }

        async def announce(made: SharedObject) -> None:
            nonlocal created
            call, created = created, None
            if call is not None:
                await call(made)

        async def create() -> SharedObject:
            made = await self.client.create(SANDBOX_CLAIM, claim, self.namespace)
            await announce(made)
            return made

        creating = asyncio.create_task(create())
        ready = False
        try:
            made = await self._ready(chosen, creating, timeout)
            await announce(made.object)
            ready = True
            return made
        finally:
            if not ready:
                await self._undo(creating, undo or self._delete)

    async def find(self, name: str) -> Claim | None:
        """The claim with a name, as it is now."""
        try:
            return Claim.from_object(await self.client.get(SANDBOX_CLAIM, name, self.namespace))
        except NotFound:
            return None

    async def wait_ready(self, name: str, timeout: float = READY_TIMEOUT) -> Claim:
        """Wait until an existing claim is ready."""
        reading = asyncio.create_task(self.client.get(SANDBOX_CLAIM, name, self.namespace))
        return await self._ready(name, reading, timeout)

    async def release(self, name: str, *, uid: str | None = None) -> None:
        """Delete a claim, and with it its sandbox. With a ``uid`` a later claim of the same name is not touched."""
        try:
            await self.client.delete(SANDBOX_CLAIM, name, self.namespace, uid=uid)
        except NotFound:
            known = [claim.name for claim in await self.list()]
            raise unknown_name("claim", name, self.namespace, known, "List them with: sandpool ls") from None

    async def delete(self, claim: Claim) -> SharedObject | None:
        """Delete this very claim, and with it its sandbox. Returns the last state of the claim; None if it is gone
        already, whether or not another claim has its name now."""
        try:
            return await self.client.delete(SANDBOX_CLAIM, claim.name, claim.namespace, uid=claim.uid)
        except (NotFound, Conflict):
            return None

    async def set_end(self, claim: Claim, shutdown_time: str) -> Claim:
        """Let this very claim and its sandbox be deleted at a time (RFC 3339). Raises ``UnknownName`` if it is gone."""
        lifecycle = {"shutdownTime": shutdown_time, "shutdownPolicy": "Delete"}
        patch = MergePatch({"metadata": {"uid": claim.uid}, "spec": {"lifecycle": lifecycle}})
        try:
            return Claim.from_object(await self.client.patch(SANDBOX_CLAIM, claim.name, patch, claim.namespace))
        except (NotFound, Conflict, Invalid) as error:
            if isinstance(error, Invalid) and not error.has_cause_at("metadata.uid"):
                raise
            raise unknown_name("claim", claim.name, claim.namespace, ()) from None

    async def keep_secret(self, claim: Claim, suffix: str, values: Mapping[str, str]) -> None:
        """Keep secret texts in a Secret that ends with the claim: unlike annotations they are not shown with it."""
        owner = {
            "apiVersion": SANDBOX_CLAIM.api_version,
            "kind": SANDBOX_CLAIM.kind,
            "name": claim.name,
            "uid": claim.uid,
        }
        secret: Object = {
            "apiVersion": "v1",
            "kind": SECRET.kind,
            "metadata": {"name": claim.name + suffix, "ownerReferences": [owner]},
            "type": "Opaque",
            "data": {name: base64.b64encode(text.encode()).decode() for name, text in values.items()},
        }
        await self.client.create(SECRET, secret, claim.namespace)

    async def read_secret(self, claim: Claim, suffix: str) -> dict[str, str]:
        """The texts that ``keep_secret`` kept for this very claim. Raises ``UnknownName`` if there are none."""
        try:
            secret = await self.client.get(SECRET, claim.name + suffix, claim.namespace)
        except NotFound:
            secret = {"metadata": {}}
        owners = secret["metadata"].get("ownerReferences") or ()
        if claim.uid not in [owner.get("uid") for owner in owners]:
            raise unknown_name("secret", claim.name + suffix, claim.namespace, ())
        data: Mapping[str, str] = secret.get("data") or {}
        return {name: base64.b64decode(value).decode(errors="replace") for name, value in data.items()}

    async def release_runs(self) -> None:
        """Delete the claims that `sandpool run` left in any namespace. Commands do not outlive the API that they were
        started through, so a home calls this before it lets commands find it."""
        left = await self.client.list(SANDBOX_CLAIM, label_selector=f"{labels.RUN}=true")
        for metadata in (claim["metadata"] for claim in left["items"]):
            with suppress(NotFound, Conflict):  # it is gone, or another claim has its name
                await self.client.delete(SANDBOX_CLAIM, metadata["name"], metadata["namespace"], uid=metadata["uid"])

    async def list(self, *, all_namespaces: bool = False, selector: str = "") -> tuple[Claim, ...]:
        """All claims, the oldest first."""
        namespace = None if all_namespaces else self.namespace
        listed = await self.client.list(SANDBOX_CLAIM, namespace, label_selector=selector)
        claims = [Claim.from_object(item) for item in listed["items"]]
        return tuple(sorted(claims, key=lambda claim: (claim.created, claim.namespace, claim.name)))

    async def _ready(self, name: str, first: asyncio.Task[SharedObject], timeout: float) -> Claim:
        last: Claim | None = None
        try:
            async with asyncio.timeout(timeout):
                watching = asyncio.create_task(self._watched(name))
                try:
                    # The first answer may be an error, and may already be the last word.
                    last = Claim.from_object(await _answer(first, watching))
                    while not last.ready:
                        await self._check(last)
                        state = await watching
                        if state.uid == last.uid:  # or it is of an earlier claim of this name
                            last = state
                        if not last.ready:
                            watching = asyncio.create_task(self._watched(name, last.object))
                    return last
                finally:
                    watching.cancel()
                    await asyncio.gather(watching, return_exceptions=True)
        except TimeoutError:
            raise self._late(name, last, timeout) from None
        except AlreadyExists:
            raise NameTaken(
                f'claim "{name}" already exists', f"Choose another name, or use it: sandpool exec {name} -- COMMAND"
            ) from None

    async def _watched(self, name: str, since: SharedObject | None = None) -> Claim:
        """The next state of the claim that is ready or final, or that differs from ``since``."""
        version = None if since is None else since["metadata"]["resourceVersion"]
        while True:
            try:
                async with aclosing(cast("Any", self._events(name, version))) as stream:
                    async for event in stream:
                        if event.type == "BOOKMARK":
                            continue
                        claim = Claim.from_object(event.object)
                        version = event.object["metadata"]["resourceVersion"]
                        if event.type == "DELETED":
                            raise ClaimGone(f'claim "{name}" was deleted while it was waited for')
                        if claim.ready or (since is not None and claim.object != since) or claim.reason:
                            return claim
            except Expired:
                version = None

    def _watch_one(self, name: str, version: str | None) -> AsyncIterator[WatchEvent]:
        return self.client.watch(
            SANDBOX_CLAIM, self.namespace, field_selector=f"metadata.name={name}", resource_version=version
        )

    async def _check(self, claim: Claim) -> None:
        """Raise an error if waiting for the claim does not help."""
        if claim.reason in _EXPIRED:
            raise ClaimGone(f'claim "{claim.name}" expired while it was waited for: {claim.message}', _why(claim.name))
        if claim.reason in _FINAL or claim.reason == api.RECONCILER_ERROR:
            advice = await self._policy_advice(claim)
            if advice or claim.reason in _FINAL:
                message = f'claim "{claim.name}" cannot be served: {claim.message}'
                raise ClaimFailed(message, advice or _why(claim.name))
        if claim.reason in (api.WARM_POOL_NOT_FOUND, api.TEMPLATE_NOT_FOUND):
            listed = await self.client.list(SANDBOX_WARM_POOL, self.namespace)
            known = [pool["metadata"]["name"] for pool in listed["items"]]
            if claim.pool not in known:
                advice = "Create one with: sandpool pool create " + claim.pool
                raise unknown_name("pool", claim.pool, self.namespace, known, advice)
            if claim.reason == api.TEMPLATE_NOT_FOUND:
                raise ClaimFailed(f'pool "{claim.pool}" has no template: {claim.message}', _why(claim.name))

    async def _policy_advice(self, claim: Claim) -> str:
        """The change of the template that allows what the claim adds; empty if it is allowed, or cannot be read."""
        # Imported for refused claims only: the views of all kinds take a third of the import time of the Python client.
        from sandpool.api.claim_policies import policy_advice
        from sandpool.api.views import ClaimView, TemplateView

        try:
            pool = await self.client.get(SANDBOX_WARM_POOL, claim.pool, self.namespace)
            name = pool["spec"]["sandboxTemplateRef"]["name"]
            template = await self.client.get(SANDBOX_TEMPLATE, name, self.namespace)
        except (NotFound, Forbidden):
            return ""
        advice = policy_advice(ClaimView.from_object(claim.object), TemplateView.from_object(template))
        return f"{advice[0].upper()}{advice[1:]}, or change the claim." if advice else ""

    def _late(self, name: str, last: Claim | None, timeout: float) -> NotReadyInTime:
        state = f": {last.message}" if last is not None and last.message else ""
        # A claim that was created for this wait is gone by now; the pool knows the reason too.
        advice = _why(name) if last is None else f"Find out more with: sandpool why pool {last.pool}"
        return NotReadyInTime(f'claim "{name}" was not ready within {timeout:g} s{state}', advice)

    async def _undo(
        self, creating: asyncio.Task[SharedObject], undo: Callable[[SharedObject], Awaitable[None]]
    ) -> None:
        """Undo the creation of a claim, if there was one, even while this task is being cancelled."""

        async def finish() -> None:
            # If it fails the claim is gone, or the API is. The error that led here is the one to report.
            with suppress(ApiError, OSError):
                await undo(await creating)

        await asyncio.shield(asyncio.create_task(finish(), name="release a claim"))

    async def _delete(self, claim: SharedObject) -> None:
        metadata = claim["metadata"]
        await self.client.delete(SANDBOX_CLAIM, metadata["name"], self.namespace, uid=metadata["uid"])


async def _answer(first: asyncio.Task[SharedObject], watching: asyncio.Task[Claim]) -> SharedObject:
    """The answer to the request, or the watched state if that is ready and the answer is lost. A claim that the watch
    shows before the answer may be another one, which has the name already."""
    await asyncio.wait((first,))  # which does not cancel it with this task
    try:
        return first.result()
    except OSError:
        if watching.done() and watching.exception() is None and (claim := watching.result()).ready:
            return claim.object
        raise


def random_name(prefix: str) -> str:
    """A name that is probably free, in the style of ``generateName``."""
    return f"{prefix[:57].rstrip('-.')}-{''.join(_LETTERS[byte % len(_LETTERS)] for byte in os.urandom(5))}"


def _why(name: str) -> str:
    return f"Find out more with: sandpool why claim {name}"
