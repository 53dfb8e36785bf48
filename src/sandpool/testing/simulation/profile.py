"""Profile: which actions and faults are frequent in a simulation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sandpool.api.warmpool import ON_REPLENISH, RECREATE, ROLLING_UPDATE
from sandpool.testing.simulation.crash import WriteKind


@dataclass(frozen=True, slots=True)
class Profile:
    """Tuples are choices with equal probability; a simulation draws one of each."""

    name: str
    weights: Mapping[str, int] = field(default_factory=dict)  # of user actions, relative to the default
    max_pause: tuple[float, ...] = (0.01, 0.3, 3.0)  # seconds between two actions, at most
    starts_full: tuple[bool, ...] = (True, True, False)  # users wait until the pools are full
    strategies: tuple[str, ...] = (RECREATE, ON_REPLENISH, ROLLING_UPDATE)
    lag: tuple[float, ...] = (0.0, 0.002, 0.02, 0.3)
    watch_lag: tuple[float, ...] = (0.0, 0.1, 1.0, 4.0)
    stalls: tuple[float, ...] = (0.0, 0.05, 0.3)
    breaks: tuple[float, ...] = (0.0, 0.0, 0.05)
    fault_rate: tuple[float, ...] = (0.0, 0.02, 0.1)
    losses: tuple[float, ...] = (0.0,)  # rate of lost responses, in addition to ``fault_rate``
    crashes: tuple[int, ...] = (0, 0, 1)
    crash_writes: tuple[WriteKind, ...] = (WriteKind.ANY, WriteKind.CREATION, WriteKind.ADOPTION, WriteKind.ADOPTION)
    late_delay: tuple[float, ...] = (0.0, 2.0)  # mean seconds in flight of a killed process's requests
    restart_delay: tuple[float, ...] = (0.0, 0.5, 5.0)  # seconds until the next process starts


#: For tests of client code: a network that lags, without faults or crashes.
RELIABLE_NETWORK = Profile(
    "reliable network",
    lag=(0.0, 0.002, 0.02),
    watch_lag=(0.0, 0.1),
    breaks=(0.0,),
    fault_rate=(0.0,),
    crashes=(0,),
)
