"""Limits of the namespace of a world."""

from __future__ import annotations

from sandpool.api.kinds import NAMESPACE
from sandpool.api.resource import Key
from sandpool.kube.client import MergePatch
from sandpool.testing.world import World


async def limit(world: World, annotation: str, value: str | None) -> None:
    """Annotate the namespace of the world, and wait until the controllers know."""
    patch = MergePatch({"metadata": {"annotations": {annotation: value}}})
    await world.client.patch(NAMESPACE, world.namespace, patch)
    namespaces, key = world.controllers.caches.namespaces, Key("", world.namespace)
    await world.eventually(
        lambda: (view := namespaces.get(key)) is not None and view.annotations.get(annotation) == value
    )
