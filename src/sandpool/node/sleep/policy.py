"""Decides when a pod falls asleep: a pure function of what was observed, with the time as an argument.

A pod is *in use* while a client is connected, while a process runs that was started after the pod was ready, and while
it uses more CPU than its settings allow. Everything that is not known counts as use: a pod that sleeps by mistake loses
work, one that stays awake by mistake only costs.

Use is sampled, so the end of a use is known to within one sample: it is the time of the last sample that saw it, or the
exact time at which a client's connection ended. A pod never falls asleep earlier than its settings say, and later by
one interval at most.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from sandpool.api.sleep import SleepSettings

#: Bounds of the interval between two samples, in seconds. It is a quarter of the time after which the pod falls asleep.
MIN_INTERVAL: Final = 0.25
MAX_INTERVAL: Final = 10.0
_SAMPLES: Final = 4


@dataclass(frozen=True, slots=True)
class Sample:
    """An observation at ``at``, in monotonic seconds.

    It has the connected clients, the time when the last one left or came, the CPU seconds that the containers have
    used, and whether a process runs, or may run, that was started after they were ready.
    """

    at: float
    clients: int
    last_client: float
    cpu_seconds: float
    has_jobs: bool = False


@dataclass(frozen=True, slots=True)
class Idleness:
    """Since when a pod is not in use, and the last sample of its CPU."""

    since: float
    sampled_at: float
    cpu_seconds: float

    def used(self, at: float) -> Idleness:
        """The pod was in use until ``at``."""
        return replace(self, since=max(self.since, at))


class Sleep(Enum):
    """An action on a pod."""

    NONE = "awake, or asleep already"
    FREEZE = "freeze its processes"
    SUSPEND = "delete it and keep its volumes"


@dataclass(frozen=True, slots=True)
class Decision:
    """The action now, and the latest time of the next sample."""

    sleep: Sleep
    look_at: float


def interval(settings: SleepSettings) -> float:
    """Seconds between two samples of a pod."""
    return min(max(settings.shortest / _SAMPLES, MIN_INTERVAL), MAX_INTERVAL)


def observe(before: Idleness | None, sample: Sample, settings: SleepSettings) -> Idleness:
    """Return the idleness after a sample. The first sample of a pod counts as use."""
    if before is None or is_in_use(before, sample, settings):
        since = sample.at
    else:
        since = max(before.since, sample.last_client)
    return Idleness(since, sample.at, sample.cpu_seconds)


def is_in_use(before: Idleness, sample: Sample, settings: SleepSettings) -> bool:
    if sample.clients > 0 or sample.has_jobs:
        return True
    seconds = sample.at - before.sampled_at
    used = sample.cpu_seconds - before.cpu_seconds
    # Of a container that restarted, less is known than before.
    return used < 0 or used > settings.cpu * seconds


def decide(settings: SleepSettings, idleness: Idleness, now: float, *, frozen: bool) -> Decision:
    """Decide about a pod that is ``frozen`` or runs. A frozen pod is inspected as often as one that runs, because a
    client may thaw it; nothing needs to be sampled for that."""
    freeze_at = None if settings.freeze_after is None or frozen else idleness.since + settings.freeze_after
    suspend_at = None if settings.suspend_after is None else idleness.since + settings.suspend_after
    again = now + interval(settings)
    if suspend_at is not None and now >= suspend_at:
        return Decision(Sleep.SUSPEND, again)
    if freeze_at is not None and now >= freeze_at:
        return Decision(Sleep.FREEZE, again)
    return Decision(Sleep.NONE, min(at for at in (freeze_at, suspend_at, again) if at is not None))
