"""When each claim was first seen, kept until it is ready and the time has been noted on it.

The watch brings a claim before any pass looks at it; how long that takes is part of how long the claim took.
"""

from __future__ import annotations

from datetime import datetime

from sandpool.controllers.claim.assignment.free_list import Key


class FirstSeen:
    __slots__ = ("_times",)

    def __init__(self) -> None:
        # By claim, with the UID of the one that was seen: a claim made again under the same name is another.
        self._times: dict[Key, tuple[str, datetime]] = {}

    def __len__(self) -> int:
        return len(self._times)

    def see(self, claim: Key, uid: str, now: datetime) -> datetime:
        """When the claim was first seen: now, if it was not before."""
        known = self._times.get(claim)
        if known is None or known[0] != uid:
            known = self._times[claim] = (uid, now)
        return known[1]

    def get(self, claim: Key, uid: str) -> datetime | None:
        known = self._times.get(claim)
        return known[1] if known is not None and known[0] == uid else None

    def forget(self, claim: Key, uid: str = "") -> None:
        """The claim is ready or gone. With a UID only that one: late news of an old claim must not touch a new one."""
        known = self._times.get(claim)
        if known is not None and uid in ("", known[0]):
            del self._times[claim]
