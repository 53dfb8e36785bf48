"""Whether a pool is getting where it should: what lets automation tell a failed template from a slow one.

There is no deadline of its own. The evidence is a member of the current template that did not become ready within its
grace period; the pool has stalled then, and stays so although that member is replaced, until more members are good than
before, or all are, or the template changes.
"""

from __future__ import annotations

from dataclasses import dataclass

from sandpool.api.conditions import PROGRESS_DEADLINE_EXCEEDED, PROGRESSING, find_condition
from sandpool.api.views import WarmPoolStatus


@dataclass(frozen=True, slots=True)
class Progress:
    target: str = ""  # the hash of the blueprint; empty if none was seen yet
    good: int = 0  # how many members were as they should be
    has_stalled: bool = False

    @classmethod
    def recalled(cls, status: WarmPoolStatus) -> Progress:
        """What a predecessor of this process left in the pool's status."""
        condition = find_condition(status.conditions, PROGRESSING)
        has_stalled = condition is not None and condition["reason"] == PROGRESS_DEADLINE_EXCEEDED
        return cls(has_stalled=has_stalled)

    def observe(self, target: str, *, good: int, desired: int, stuck: int) -> Progress:
        """``stuck``: members of the current template that ran out of grace."""
        if good >= desired or (target == self.target and good > self.good):
            has_stalled = False
        else:
            has_stalled = stuck > 0 or (self.target in ("", target) and self.has_stalled)
        return Progress(target, good, has_stalled)
