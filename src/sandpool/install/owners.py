"""Rewrite owner references that name an API version which is no longer served.

The Go controller wrote references to v1alpha1 for a long time. Our controllers accept them, but the garbage collector
of Kubernetes looks up an owner in the version that the reference names. For half a minute after the removal of a
version the collector still uses it, gets 404 and deletes dependents of owners that exist. Afterwards it cannot look up
the owner at all, and dependents of deleted owners stay for ever. So the references are rewritten before the version is
removed, and again after their writer has stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from sandpool.api.kinds import NETWORK_POLICY, PERSISTENT_VOLUME_CLAIM, POD, SANDBOX, SANDPOOL, SERVICE
from sandpool.api.resource import Object, ResourceType, SharedObject
from sandpool.install.fit import all_of
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import ApiError, Conflict, NotFound

# The kinds that the controllers create with an owner.
_OWNED: Final = (SANDBOX, POD, SERVICE, PERSISTENT_VOLUME_CLAIM, NETWORK_POLICY)
_SERVED: Final = {(type.group, type.kind): type.api_version for type in SANDPOOL}
_CONCURRENCY: Final = 16


async def renew_owners(
    client: Client,
    report: Callable[[str], None],
    *,
    dry_run: bool = False,
    tolerate: tuple[type[ApiError], ...] = (),
) -> None:
    """Rewrite the owner references that name a version of our kinds which is no longer served, on all objects that the
    controllers create. Report the number of changed objects of each kind.

    A kind is skipped if the cluster does not have it, or if the API answers with one of the ``tolerate`` errors.
    """
    for kind in _OWNED:
        with suppress(NotFound, *tolerate):  # a cluster may not have the kind yet
            await _renew_all(client, kind, report, dry_run=dry_run)


async def _renew_all(client: Client, type: ResourceType, report: Callable[[str], None], *, dry_run: bool) -> None:
    stale = [each async for each in all_of(client, type) if renewed(each) is not None]
    limit = asyncio.Semaphore(_CONCURRENCY)
    await asyncio.gather(*(_renew(client, type, each, limit, dry_run=dry_run) for each in stale))
    if stale:
        report(f"owner references of {len(stale)} {type.plural} changed to the served version{_dry(dry_run)}")


async def _renew(
    client: Client, type: ResourceType, object: SharedObject, limit: asyncio.Semaphore, *, dry_run: bool
) -> None:
    """Rewrite one object's references; retry after a conflict, for example with an adoption."""
    metadata = object["metadata"]
    name, namespace = metadata["name"], metadata["namespace"]
    async with limit:
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


def renewed(object: SharedObject) -> list[Object] | None:
    """The owner references with served versions; None if nothing changes."""
    references = object["metadata"].get("ownerReferences") or []
    new = [{**each, "apiVersion": _served(each)} for each in references]
    return new if new != references else None


def _served(reference: Object) -> str:
    written: str = reference["apiVersion"]
    return _SERVED.get((written.partition("/")[0], reference["kind"]), written)


def _dry(dry_run: bool) -> str:
    return " (dry run)" if dry_run else ""
