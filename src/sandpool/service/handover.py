"""Waits until the claim of a resumed sandbox has handed its variables over again (late binding).

The sandbox is Ready before that, and its claim only after it. The condition Ready of the claim is a copy of that of the
sandbox, with its time: it describes this run of the sandbox if it is not older.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, cast

from sandpool.api import conditions as api
from sandpool.api import labels
from sandpool.api.conditions import condition_of
from sandpool.api.kinds import SANDBOX_CLAIM
from sandpool.api.resource import Key, ResourceType, SharedObject
from sandpool.kube.client import Client
from sandpool.kube.errors import Expired, Forbidden, NotFound
from sandpool.service.errors import ServiceError


class NotHandedOver(ServiceError):
    """The sandbox runs without the variables of its claim. The message has the reason."""


async def until_handed_over(client: Client, sandbox: SharedObject, seen: Callable[[SharedObject], None]) -> None:
    """Return when the claim of a sandbox that is Ready has handed its variables to it; at once if it hands over none.
    ``seen`` gets the states of the claim before. Raises ``NotHandedOver``."""
    claim = claim_that_binds(sandbox)
    if claim is None:
        return
    try:
        current = await client.get(SANDBOX_CLAIM, claim.name, claim.namespace)
    except (NotFound, Forbidden):
        return  # gone, as its sandbox will be; or not for this user to see
    if _is_done(current, sandbox):
        return
    seen(current)
    version = current["metadata"]["resourceVersion"]
    async with aclosing(cast("Any", states(client, SANDBOX_CLAIM, claim, version))) as following:
        async for each in following:
            if each is None or _is_done(each, sandbox):
                return
            seen(each)


def claim_that_binds(sandbox: SharedObject) -> Key | None:
    """The claim that hands its variables to a sandbox; None if there is none."""
    metadata = sandbox["metadata"]
    if (metadata.get("annotations") or {}).get(labels.LATE_BOUND) != "true":
        return None
    for owner in metadata.get("ownerReferences") or ():
        if owner.get("controller") and owner.get("kind") == SANDBOX_CLAIM.kind:
            return Key(metadata["namespace"], owner["name"])
    return None


def _is_done(claim: SharedObject, sandbox: SharedObject) -> bool:
    if claim["metadata"].get("deletionTimestamp"):
        return True
    ready, of_sandbox = condition_of(claim, api.READY), condition_of(sandbox, api.READY)
    if ready is None or of_sandbox is None:
        return False
    if ready["reason"] == api.ENVIRONMENT_NOT_BOUND:
        raise NotHandedOver(
            f'sandbox "{sandbox["metadata"]["name"]}" runs without the variables of its claim: {ready["message"]}',
            f"Find out more with: sandpool why {claim['metadata']['name']}",
        )
    return bool(ready["status"] == api.TRUE and ready["lastTransitionTime"] >= of_sandbox["lastTransitionTime"])


async def states(
    client: Client, type: ResourceType, key: Key, version: str | None
) -> AsyncIterator[SharedObject | None]:
    """Yield the states of an object after a version, or from the present one on; None when it is deleted."""
    while True:
        events = client.watch(type, key.namespace, field_selector=f"metadata.name={key.name}", resource_version=version)
        try:
            async with aclosing(cast("Any", events)) as stream:
                async for event in stream:
                    if event.type == "BOOKMARK":
                        continue
                    version = event.object["metadata"]["resourceVersion"]
                    yield None if event.type == "DELETED" else event.object
        except Expired:
            version = None
