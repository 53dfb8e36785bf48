"""Profiles of the simulated users: which actions and faults are frequent in a simulation.

If all events were equally likely, interesting coincidences would be rare. For example, a claim adopts a sandbox at the
moment its pool deletes it only if the pool is full, claims are many, and a user keeps scaling the pool. A profile makes
some events likely. All others may still happen.
"""

from __future__ import annotations

from random import Random

from sandpool.api.warmpool import ON_REPLENISH, RECREATE, ROLLING_UPDATE
from sandpool.testing.simulation.crash import WriteKind
from sandpool.testing.simulation.profile import Profile

ORDINARY = Profile("ordinary")
CONTENTION = Profile(
    "contention",
    {"claim": 2, "burst": 5, "delete_claim": 3, "scale": 4, "change_template": 4},
    max_pause=(0.01, 0.1),
    starts_full=(True,),
    strategies=(RECREATE, RECREATE, ROLLING_UPDATE),
    lag=(0.002, 0.02, 0.3),
    watch_lag=(0.0, 0.1, 1.0),
    fault_rate=(0.0, 0.02),
    crashes=(0,),
)
FAULTY_NETWORK = Profile(
    "faulty network",
    {"burst": 2, "scale": 2},
    lag=(0.002, 0.02),
    watch_lag=(1.0, 4.0),
    stalls=(0.3, 0.6),
    breaks=(0.05, 0.15),
    fault_rate=(0.1, 0.3, 0.5),
)
FREQUENT_CRASHES = Profile(
    "frequent crashes",
    {"burst": 6, "claim": 2},
    max_pause=(0.01, 0.1, 1.0),
    starts_full=(True,),
    lag=(0.02, 0.3, 1.0),
    fault_rate=(0.0, 0.02),
    crashes=(2, 3, 4),
)
ROLLOUTS = Profile(
    "rollouts",
    {"change_template": 8, "claim": 2, "disturb": 2},
    max_pause=(0.3, 3.0),
    starts_full=(True,),
    strategies=(ROLLING_UPDATE,),
    fault_rate=(0.0, 0.02),
    crashes=(0, 0, 0, 1),
)
CRASHES_AT_ADOPTION = Profile(
    "crashes at adoption",
    {"burst": 6, "claim": 2, "scale": 4, "delete_claim": 2},
    max_pause=(0.01, 0.1, 1.0),
    starts_full=(True,),
    strategies=(RECREATE, ON_REPLENISH),
    lag=(0.02, 0.3),
    watch_lag=(0.0, 0.1),
    fault_rate=(0.0,),
    crashes=(3, 4),
    crash_writes=(WriteKind.ADOPTION,),
    late_delay=(2.0, 5.0),
    restart_delay=(0.0,),
)
CRASHES_AT_STATUS = Profile(
    "crashes at status updates",
    {"disturb": 8, "suspend": 6, "delete_pod": 2, "claim": 2},
    max_pause=(0.3, 1.0),
    lag=(0.02, 0.3),
    watch_lag=(0.0, 0.1),
    fault_rate=(0.0,),
    crashes=(3, 4),
    crash_writes=(WriteKind.STATUS,),
    late_delay=(2.0, 5.0),
    restart_delay=(0.0,),
)
STALLED_WATCHES = Profile(
    "stalled watches",
    {"burst": 4, "claim": 2, "delete_claim": 8, "replace_claim": 4},
    max_pause=(0.01, 0.3, 1.0),
    starts_full=(True,),
    lag=(0.002, 0.02),
    watch_lag=(4.0,),
    stalls=(0.6,),
    breaks=(0.0,),
    fault_rate=(0.0,),
    losses=(0.0, 0.2, 0.5),
    crashes=(0,),
)
DISRUPTIVE_USERS = Profile(
    "disruptive users",
    {"delete_pod": 4, "delete_sandbox": 6, "suspend": 4, "edit_metadata": 3, "disturb": 4},
    starts_full=(True,),
    lag=(0.002, 0.02, 0.3),
)
QUOTA_EXCEEDED = Profile(
    "quota exceeded",
    {"quota": 12, "scale": 3, "burst": 3},
    max_pause=(0.3, 3.0),
    lag=(0.0, 0.002, 0.02),
)
PROFILES = (
    *(ORDINARY, CONTENTION, FAULTY_NETWORK, FREQUENT_CRASHES, ROLLOUTS),
    *(CRASHES_AT_ADOPTION, CRASHES_AT_STATUS, STALLED_WATCHES, DISRUPTIVE_USERS, QUOTA_EXCEEDED),
)


def draw_profile(rng: Random) -> Profile:
    return rng.choice(PROFILES)
