"""How long a container that ended waits before it runs again: kubelet's crash-loop back-off.

The first restart is immediate. Every further one waits from the end of the last run, 10 s and then twice as long each
time, 5 min at most. A container that ran for 10 min begins anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_FIRST: Final = 10.0
_LONGEST: Final = 300.0
_FORGOTTEN: Final = 600.0


@dataclass(frozen=True, slots=True)
class CrashBackoff:
    """``pause`` follows the end of the present run; ``since`` is when that was decided, at the start of the run."""

    pause: float
    since: float

    @staticmethod
    def restarted(before: CrashBackoff | None, now: float) -> CrashBackoff:
        """After another restart, ``before`` being what held until now."""
        if before is None or now - before.since > _FORGOTTEN:
            return CrashBackoff(_FIRST, now)
        return CrashBackoff(min(before.pause * 2, _LONGEST), now)


def restart_at(backoff: CrashBackoff | None, ended: float) -> float:
    """When a container may run again that ended at this time."""
    if backoff is None or ended - backoff.since > _FORGOTTEN:
        return ended
    return ended + backoff.pause
