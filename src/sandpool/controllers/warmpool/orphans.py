"""What becomes of sandboxes that carry the pool's label and belong to nobody.

Those the template would make today are taken in as far as there is room, and the rest is deleted: nobody else would
ever look after them. Without a template there is nothing to compare them with, and they are left alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sandpool.api.views import SandboxView
from sandpool.controllers.warmpool.shrink import surplus
from sandpool.controllers.warmpool.staleness import Staleness


@dataclass(frozen=True, slots=True)
class Orphans:
    adopt: tuple[SandboxView, ...] = ()
    discard: tuple[SandboxView, ...] = ()


def vet(
    orphans: Iterable[SandboxView], staleness: Staleness | None, *, missing: int, terminating: int, settled: bool
) -> Orphans:
    """``missing``: how many more members there should be. As many as are terminating have to wait for that; and all
    have to wait until it is certain how many there are (``settled``)."""
    if staleness is None:
        return Orphans()
    fitting: list[SandboxView] = []
    foreign: list[SandboxView] = []
    for orphan in orphans:
        (foreign if staleness.is_foreign(orphan) else fitting).append(orphan)
    if not settled:
        return Orphans(discard=tuple(foreign))
    best_last = surplus(fitting, len(fitting))
    too_many = best_last[: max(0, len(fitting) - max(0, missing))]
    adopted = best_last[max(0, len(fitting) - max(0, missing - terminating)) :]
    return Orphans(adopt=tuple(adopted), discard=(*foreign, *too_many))
