"""Owner references in a version that is not served any more are written anew.

The Go controller wrote references to v1alpha1 for long. Our controllers take them as they are, but Kubernetes collects
garbage by asking for the owner in the version that the reference names. For half a minute after a version has gone
Kubernetes still believes in it, is told that there is no such owner, and deletes what belongs to one that is there. And
after that it cannot tell whether an owner is gone, and what belonged to it stays for ever. So references are written
anew before the version goes; and once more when whoever wrote them has gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from sandpool.api.kinds import NETWORK_POLICY, PERSISTENT_VOLUME_CLAIM, POD, SANDBOX, SANDPOOL, SERVICE
from sandpool.api.resource import Object, ResourceType
from sandpool.install.fit import all_of
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import ApiError, Conflict, NotFound

# What the controllers make, and what is owned therefore.
_OWNED: Final = (SANDBOX, POD, SERVICE, PERSISTENT_VOLUME_CLAIM, NETWORK_POLICY)
_SERVED: Final = {(type.group, type.kind): type.api_version for type in SANDPOOL}
_AT_ONCE: Final = 16


async def renew_owners(
    client: Client,
    say: Callable[[str], None],
    *,
    dry_run: bool = False,
    tolerate: tuple[type[ApiError], ...] = (),
) -> None:
    """Everywhere in the cluster. Says how many there were of each kind, if any. A kind for which the API answers with
    what is to be tolerated is left as it is."""
    for kind in _OWNED:
        with suppress(NotFound, *tolerate):  # a cluster may not have the kind yet
            await _renew_all(client, kind, say, dry_run=dry_run)


async def _renew_all(client: Client, type: ResourceType, say: Callable[[str], None], *, dry_run: bool) -> None:
    stale = [each async for each in all_of(client, type) if renewed(each) is not None]
    turn = asyncio.Semaphore(_AT_ONCE)
    await asyncio.gather(*(_renew(client, type, each, turn, dry_run=dry_run) for each in stale))
    if stale:
        say(f"owners of {len(stale)} {type.plural} named in the version that is served{_dry(dry_run)}")


async def _renew(client: Client, type: ResourceType, object: Object, turn: asyncio.Semaphore, *, dry_run: bool) -> None:
    """Somebody else may write meanwhile, for instance whoever hands the object over to another owner."""
    metadata = object["metadata"]
    name, namespace = metadata["name"], metadata["namespace"]
    async with turn:
        while (references := renewed(object)) is not None:
            version = object["metadata"]["resourceVersion"]
            patch = MergePatch({"metadata": {"resourceVersion": version, "ownerReferences": references}})
            try:
                await client.patch(type, name, patch, namespace, dry_run=dry_run)
                return
            except Conflict:
                object = await client.get(type, name, namespace)
            except NotFound:
                return


def renewed(object: Object) -> list[Object] | None:
    """The owner references with the versions that are served; None if they have these already."""
    references = object["metadata"].get("ownerReferences") or []
    new = [{**each, "apiVersion": _served(each)} for each in references]
    return new if new != references else None


def _served(reference: Object) -> str:
    written: str = reference["apiVersion"]
    return _SERVED.get((written.partition("/")[0], reference["kind"]), written)


def _dry(dry_run: bool) -> str:
    return " (dry run)" if dry_run else ""
