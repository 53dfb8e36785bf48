"""Installs custom kinds into an API and waits until it serves them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from sandpool.api.kinds import CUSTOM_RESOURCE_DEFINITION
from sandpool.api.resource import Object, ResourceType, SharedObject
from sandpool.kube.client import Client
from sandpool.kube.errors import NotFound, TooManyRequests
from sandpool.testing.waiting import until

_TIMEOUT = 60.0  # seconds; an API server publishes definitions one after the other, and slowly when it is starved

# Installs a definition into the API of a test, once for all tests that share the API.
Provide = Callable[[Object], Awaitable[None]]


async def install(client: Client, definition: Object) -> SharedObject:
    """Create a CustomResourceDefinition; returns it once it is established and its storage version answers.

    Kubernetes establishes a definition before each of its handlers has noticed, so the condition alone is too early.
    """
    name = definition["metadata"]["name"]
    await client.create(CUSTOM_RESOURCE_DEFINITION, definition)
    spec = definition["spec"]
    types = [
        ResourceType(
            spec["group"], version["name"], spec["names"]["kind"], spec["names"]["plural"], spec["scope"] != "Cluster"
        )
        for version in spec["versions"]
        if version["served"]
    ]

    async def established() -> SharedObject | None:
        current = await client.get(CUSTOM_RESOURCE_DEFINITION, name)
        return current if condition(current, "Established") == "True" else None

    async def served(type: ResourceType) -> bool:
        try:
            await client.list(type)
        except (NotFound, TooManyRequests):  # 429 while it sets up the storage
            return False
        return True

    installed = await until(established, within=_TIMEOUT)
    for type in types:
        await until(partial(served, type), within=_TIMEOUT)
    assert installed is not None
    return installed


def condition(object: SharedObject, type: str) -> str | None:
    """Return the status of a condition; None if it is absent."""
    conditions = object.get("status", {}).get("conditions") or []
    return next((each["status"] for each in conditions if each["type"] == type), None)
