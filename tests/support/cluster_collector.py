"""Whether the garbage collector of a real cluster works, and what it has deleted."""

from __future__ import annotations

import secrets
from typing import Final

from sandpool.api.kinds import CONFIG_MAP
from sandpool.api.resource import ResourceType
from sandpool.kube.client import Client
from sandpool.kube.errors import NotFound
from sandpool.testing.objects import new
from sandpool.testing.waiting import until
from tests.support.api_objects import owner_reference

_TIMEOUT: Final = 90.0  # seconds until a controller of the cluster has done its part on a loaded machine


async def is_gone(client: Client, type: ResourceType, name: str, namespace: str | None = None) -> bool:
    try:
        await client.get(type, name, namespace)
    except NotFound:
        return True
    return False


async def collected_something(client: Client, namespace: str) -> None:
    """Return when the garbage collector has deleted an object whose owner is gone: it works."""
    owner = await client.create(CONFIG_MAP, new(CONFIG_MAP, f"owner-{secrets.token_hex(3)}"), namespace)
    metadata = {"ownerReferences": [owner_reference(owner)]}
    name = f"owned-{secrets.token_hex(3)}"
    await client.create(CONFIG_MAP, new(CONFIG_MAP, name, metadata=metadata), namespace)
    await client.delete(CONFIG_MAP, owner["metadata"]["name"], namespace)
    await until(lambda: is_gone(client, CONFIG_MAP, name, namespace), within=_TIMEOUT)
