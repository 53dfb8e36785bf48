"""Writes that may wait a little, so that several changes become one request.

A write is first due when it is first found to be needed. Finding it again does not put it off, or a busy object would
never be written. Only the moment is remembered, not what was to be written: the write that is done in the end is made
from what is true then. Whoever forgets the moment, by a restart for instance, waits once more and loses nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

#: However long somebody asks for, pods get their labels after this long: network policies select by them.
LONGEST_WRITE_BEHIND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Waiting:
    """What is remembered of one sandbox between passes: since when its pod's metadata and its own status wait."""

    pod: datetime | None = None
    status: datetime | None = None


def time_left(since: datetime | None, window: timedelta, now: datetime) -> timedelta:
    """How long a write may still wait that has been needed ``since`` then, or only now if that is None. Zero: do it."""
    return max(timedelta(0), (since or now) + window - now)


def write_behind_window(asked_for: timedelta) -> timedelta:
    return min(asked_for, LONGEST_WRITE_BEHIND)
