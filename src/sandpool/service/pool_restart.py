"""Restart of a pool: replaces its idle sandboxes although the template has not changed.

New sandboxes differ from old ones if something outside of the template has changed: an image that was built again under
its name, or a Secret that is read at the start.

Idle sandboxes are deleted a few at a time, and the controller of the pool creates the new ones. The pool must be full
again before the next ones are deleted; if new sandboxes do not become ready, the others stay. A sandbox that is not
ready serves no claim and is deleted at once. The version of each sandbox is a precondition of its deletion, so one that
a claim adopts at the same time stays.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final, cast

from sandpool.api.kinds import SANDBOX
from sandpool.api.resource import SharedObject
from sandpool.kube.client import Client
from sandpool.kube.errors import Conflict, Expired, NotFound
from sandpool.service.sandboxes import Sandbox

#: The share of a pool that is replaced at the same time.
_SHARE: Final = 4


async def replace_idle(
    client: Client, namespace: str, pool: str, size: int, progress: Callable[[int, int], None]
) -> int:
    """Replace the sandboxes that are idle now; returns how many. ``progress`` receives the number that has been
    replaced and the number of all. Has no time limit of its own."""
    old: frozenset[str] | None = None
    deleted: set[str] = set()  # the watch may still show them
    async with aclosing(cast("Any", _idle(client, namespace, pool))) as states:
        async for state in states:
            idle = {uid: each for uid, each in state.items() if uid not in deleted}
            if old is None:
                old = frozenset(idle)
            remaining = [uid for uid in idle if uid in old]
            progress(len(old) - len(remaining), len(old))
            ready = sum(each.ready for each in idle.values())
            if not remaining and ready >= min(size, len(old)):
                break
            broken = [uid for uid in remaining if not idle[uid].ready]
            running = [uid for uid in remaining if idle[uid].ready]
            is_full = ready + len(broken) >= size
            for uid in (*broken, *running[: max(1, size // _SHARE) if is_full else 0]):
                if await _delete(client, idle[uid].object):
                    deleted.add(uid)
    return len(old or ())


async def _delete(client: Client, sandbox: SharedObject) -> bool:
    """Delete a sandbox in the state that it was seen in; False if it has changed meanwhile."""
    metadata = sandbox["metadata"]
    try:
        await client.delete(
            SANDBOX,
            metadata["name"],
            metadata["namespace"],
            uid=metadata["uid"],
            resource_version=metadata["resourceVersion"],
        )
    except NotFound:
        return True
    except Conflict:
        return False  # its next state is on the way
    return True


async def _idle(client: Client, namespace: str, pool: str) -> AsyncIterator[Mapping[str, Sandbox]]:
    """Yield the idle sandboxes of a pool by UID, now and after every change. One that is being deleted is not idle."""
    while True:
        listed = await client.list(SANDBOX, namespace)
        found = {each["metadata"]["uid"]: each for each in listed["items"] if _is_idle(each, pool)}
        yield _views(found)
        version = listed["metadata"]["resourceVersion"]
        try:
            async with aclosing(cast("Any", client.watch(SANDBOX, namespace, resource_version=version))) as stream:
                async for event in stream:
                    if event.type == "BOOKMARK":
                        continue
                    uid = event.object["metadata"]["uid"]
                    if event.type != "DELETED" and _is_idle(event.object, pool):
                        found[uid] = event.object
                    elif found.pop(uid, None) is None:
                        continue
                    yield _views(found)
        except Expired:
            continue


def _views(objects: Mapping[str, SharedObject]) -> Mapping[str, Sandbox]:
    return {uid: Sandbox.from_object(each) for uid, each in objects.items()}


def _is_idle(sandbox: SharedObject, pool: str) -> bool:
    return "deletionTimestamp" not in sandbox["metadata"] and Sandbox.from_object(sandbox).pool == pool
