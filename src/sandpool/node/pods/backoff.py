"""Kubelet's crash-loop back-off: how long a container that ended waits before it runs again.

The first restart is immediate. Each further one waits from the end of the last run: 10 s, then twice as long each time,
5 min at most. A container that ran for 10 min starts over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_FIRST: Final = 10.0
_LONGEST: Final = 300.0
_FORGOTTEN: Final = 600.0


@dataclass(frozen=True, slots=True)
class CrashBackoff:
    """``pause`` follows the end of the current run; ``since`` is the start of that run."""

    pause: float
    since: float

    @staticmethod
    def restarted(before: CrashBackoff | None, now: float) -> CrashBackoff:
        """Return the back-off after another restart. ``before`` is the one that applied until now."""
        if before is None or now - before.since > _FORGOTTEN:
            return CrashBackoff(_FIRST, now)
        return CrashBackoff(min(before.pause * 2, _LONGEST), now)


def restart_at(backoff: CrashBackoff | None, ended: float) -> float:
    """Return when a container that ended at ``ended`` may run again."""
    if backoff is None or ended - backoff.since > _FORGOTTEN:
        return ended
    return ended + backoff.pause
