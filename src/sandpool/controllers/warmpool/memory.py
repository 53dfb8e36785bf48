"""What is remembered of a pool from one pass to the next, and forgotten with the pool."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime

from sandpool.api.conditions import PROGRESSING, UNSCHEDULABLE, find_condition
from sandpool.api.views import WarmPoolView
from sandpool.controllers.warmpool.breaker import Attempt
from sandpool.controllers.warmpool.progress import Progress
from sandpool.controllers.warmpool.scaling import Supply


@dataclass(frozen=True, slots=True)
class Memory:
    supply: Supply = field(default_factory=Supply)
    progress: Progress = field(default_factory=Progress)
    has_warned: bool = False  # about members that are unschedulable
    status_written: datetime | None = None

    @classmethod
    def recalled(cls, pool: WarmPoolView) -> Memory:
        """The memory of a process that sees the pool for the first time. What its predecessor had to say is in the
        pool's status, and is not said again."""
        condition = find_condition(pool.status.conditions, PROGRESSING)
        has_warned = condition is not None and condition["reason"] == UNSCHEDULABLE
        return cls(progress=Progress.recalled(pool.status), has_warned=has_warned)

    def attempted(self, attempt: Attempt, now: datetime) -> Memory:
        return replace(self, supply=self.supply.attempted(attempt, now))
