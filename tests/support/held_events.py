"""Watch events that arrive late, as seen by the controllers of a world."""

from __future__ import annotations

from collections.abc import Callable

from sandpool.api.resource import ResourceType
from sandpool.kube.transport import WatchEvent
from sandpool.testing.world import World


def hold_events(world: World, type: ResourceType) -> Callable[[], None]:
    """Hold back the controllers' watch events of a type until the returned function is called."""
    reflector = next(each for each in world.controllers.informers.reflectors if each.type == type)
    take = reflector._take_event
    held: list[WatchEvent] = []

    def hold(event: WatchEvent) -> None:
        held.append(event)

    def release() -> None:
        reflector._take_event = take  # type: ignore[method-assign]
        for event in held:
            take(event)

    reflector._take_event = hold  # type: ignore[method-assign]
    return release
