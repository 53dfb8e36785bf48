"""CustomResourceDefinitions: taking over those of another installation, and waiting until they are served.

The Go controller also serves v1alpha1, converted by its own webhook. Objects are stored in v1beta1, which is identical
in both implementations, so its definitions can be replaced while objects exist. Two things need care: the
conversion webhook must be removed from a definition before a definition without one can be applied, and objects that
may still be stored in the old version can only be read through that webhook.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from sandpool.api.kinds import CUSTOM_RESOURCE_DEFINITION, SANDPOOL
from sandpool.api.resource import Object, ResourceType, SharedObject
from sandpool.engine.clock import Clock
from sandpool.install.errors import InstallError
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import NotFound, TooManyRequests

_PAUSE: Final = 0.2  # seconds between two polls


async def check(client: Client, definition: Object, *, force: bool) -> None:
    """Raise ``InstallError`` if the existing definition cannot be replaced."""
    name = definition["metadata"]["name"]
    try:
        present = await client.get(CUSTOM_RESOURCE_DEFINITION, name)
    except NotFound:
        return
    versions = {each["name"] for each in definition["spec"]["versions"]}
    old = sorted(set(present.get("status", {}).get("storedVersions") or ()) - versions)
    if old:
        raise InstallError(
            f"objects of {name} may still be stored as {', '.join(old)}, which only the controller that wrote them can "
            "read\nMigrate them with it, then remove the version from the definition's status.storedVersions"
        )
    if converts(present) and not force:
        raise InstallError(
            f"the definition of {name} belongs to another installation\n"
            "--force replaces it; sandboxes, pools and claims stay"
        )


def converts(present: SharedObject) -> bool:
    return "webhook" in (present["spec"].get("conversion") or {})


async def take_over(client: Client, present: SharedObject, report: Callable[[str], None]) -> None:
    """Remove the conversion webhook from an existing definition."""
    name = present["metadata"]["name"]
    patch = MergePatch({"spec": {"conversion": {"strategy": "None", "webhook": None}}})
    await client.patch(CUSTOM_RESOURCE_DEFINITION, name, patch)
    report(f"conversion webhook of {name} removed")


async def served(client: Client, clock: Clock, defined: list[Object]) -> None:
    """Wait until the API serves all of them.

    The API sets the condition Established before all its handlers serve the kind, so the condition alone is too early.
    """
    names = {each["metadata"]["name"] for each in defined}
    await asyncio.gather(*(_served(client, clock, type) for type in SANDPOOL if type.group_resource in names))


async def _served(client: Client, clock: Clock, type: ResourceType) -> None:
    while True:
        try:
            await client.list(type, limit=1)
        except (NotFound, TooManyRequests):  # 429 while the API server sets up the storage
            await clock.sleep(_PAUSE)
        else:
            return
