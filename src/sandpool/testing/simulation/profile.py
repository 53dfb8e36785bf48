"""What a simulation is mostly about.

If everything may happen at any time, nothing happens often enough to meet something else: a claim that takes a sandbox
in the very moment in which its pool lets it go needs a full pool, a crowd, and somebody who keeps changing the pool's
size. A theme makes some things likely. Everything else may still happen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from sandpool.api.warmpool import ON_REPLENISH, RECREATE, ROLLING_UPDATE
from sandpool.testing.simulation.crash import Kind


@dataclass(frozen=True, slots=True)
class Theme:
    """What stands for a choice is drawn from, each as likely as the others."""

    name: str
    often: Mapping[str, int] = field(default_factory=dict)  # deeds of people, and how many times likelier they are
    hurry: tuple[float, ...] = (0.01, 0.3, 3.0)  # seconds between two deeds, at most
    is_filled: tuple[bool, ...] = (True, True, False)  # nothing happens before the pools are full
    strategies: tuple[str, ...] = (RECREATE, ON_REPLENISH, ROLLING_UPDATE)
    lag: tuple[float, ...] = (0.0, 0.002, 0.02, 0.3)
    watch_lag: tuple[float, ...] = (0.0, 0.1, 1.0, 4.0)
    stalls: tuple[float, ...] = (0.0, 0.05, 0.3)
    breaks: tuple[float, ...] = (0.0, 0.0, 0.05)
    severity: tuple[float, ...] = (0.0, 0.02, 0.1)
    losses: tuple[float, ...] = (0.0,)  # answers that get lost, besides what the severity brings
    deaths: tuple[int, ...] = (0, 0, 1)
    dies_of: tuple[Kind, ...] = (Kind.ANY, Kind.CREATION, Kind.GIFT, Kind.GIFT)
    limbo: tuple[float, ...] = (0.0, 2.0)  # mean seconds that what a dead process has sent is still under way
    reborn: tuple[float, ...] = (0.0, 0.5, 5.0)  # seconds until there is another process


ORDINARY = Theme("ordinary days")
TUG_OF_WAR = Theme(
    "tug of war",
    {"claim": 2, "burst": 5, "delete_claim": 3, "scale": 4, "change_template": 4},
    hurry=(0.01, 0.1),
    is_filled=(True,),
    strategies=(RECREATE, RECREATE, ROLLING_UPDATE),
    lag=(0.002, 0.02, 0.3),
    watch_lag=(0.0, 0.1, 1.0),
    severity=(0.0, 0.02),
    deaths=(0,),
)
STORM = Theme(
    "a storm",
    {"burst": 2, "scale": 2},
    lag=(0.002, 0.02),
    watch_lag=(1.0, 4.0),
    stalls=(0.3, 0.6),
    breaks=(0.05, 0.15),
    severity=(0.1, 0.3, 0.5),
)
SUDDEN_DEATHS = Theme(
    "sudden deaths",
    {"burst": 6, "claim": 2},
    hurry=(0.01, 0.1, 1.0),
    is_filled=(True,),
    lag=(0.02, 0.3, 1.0),
    severity=(0.0, 0.02),
    deaths=(2, 3, 4),
)
ROLLOUTS = Theme(
    "rollouts",
    {"change_template": 8, "claim": 2, "disturb": 2},
    hurry=(0.3, 3.0),
    is_filled=(True,),
    strategies=(ROLLING_UPDATE,),
    severity=(0.0, 0.02),
    deaths=(0, 0, 0, 1),
)
LAST_GIFTS = Theme(
    "last gifts",
    {"burst": 6, "claim": 2, "scale": 4, "delete_claim": 2},
    hurry=(0.01, 0.1, 1.0),
    is_filled=(True,),
    strategies=(RECREATE, ON_REPLENISH),
    lag=(0.02, 0.3),
    watch_lag=(0.0, 0.1),
    severity=(0.0,),
    deaths=(3, 4),
    dies_of=(Kind.GIFT,),
    limbo=(2.0, 5.0),
    reborn=(0.0,),
)
LAST_WORDS = Theme(
    "last words",
    {"disturb": 8, "suspend": 6, "delete_pod": 2, "claim": 2},
    hurry=(0.3, 1.0),
    lag=(0.02, 0.3),
    watch_lag=(0.0, 0.1),
    severity=(0.0,),
    deaths=(3, 4),
    dies_of=(Kind.WORD,),
    limbo=(2.0, 5.0),
    reborn=(0.0,),
)
SILENCE = Theme(
    "silence",
    {"burst": 4, "claim": 2, "delete_claim": 8, "replace_claim": 4},
    hurry=(0.01, 0.3, 1.0),
    is_filled=(True,),
    lag=(0.002, 0.02),
    watch_lag=(4.0,),
    stalls=(0.6,),
    breaks=(0.0,),
    severity=(0.0,),
    losses=(0.0, 0.2, 0.5),
    deaths=(0,),
)
VANDALS = Theme(
    "vandals",
    {"delete_pod": 4, "delete_sandbox": 6, "suspend": 4, "meddle": 3, "disturb": 4},
    is_filled=(True,),
    lag=(0.002, 0.02, 0.3),
)
HARD_TIMES = Theme(
    "hard times",
    {"quota": 12, "scale": 3, "burst": 3},
    hurry=(0.3, 3.0),
    lag=(0.0, 0.002, 0.02),
)
THEMES = (
    *(ORDINARY, TUG_OF_WAR, STORM, SUDDEN_DEATHS, ROLLOUTS),
    *(LAST_GIFTS, LAST_WORDS, SILENCE, VANDALS, HARD_TIMES),
)


#: For stories that are about something else than the controllers: a network that lags, and nothing that goes wrong.
GENTLE = Theme(
    "a good day",
    lag=(0.0, 0.002, 0.02),
    watch_lag=(0.0, 0.1),
    breaks=(0.0,),
    severity=(0.0,),
    deaths=(0,),
)


def draw_theme(random: Random) -> Theme:
    return random.choice(THEMES)
