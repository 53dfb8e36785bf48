"""Writes on claims what is to be noted when they have been served: few at a time, and never in anybody's way.

A note that the API refuses because of the UID in it is about a claim that has been deleted and made again under its
name, and is dropped. The same answer, a conflict, may mean that somebody else wrote the claim at that very moment; so
as long as we know the claim by that UID, the note is tried again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random

from sandpool.controllers.perform import Performer
from sandpool.controllers.writes import Patch
from sandpool.engine.cache import Key
from sandpool.engine.clock import Clock
from sandpool.engine.controller import DONE, Controller, Result
from sandpool.kube.errors import Conflict, Invalid


class Noting:
    """``noted`` is called with a claim and its UID when there is no more to note on it."""

    def __init__(
        self,
        performer: Performer,
        clock: Clock,
        random: Random,
        noted: Callable[[Key, str], object],
        *,
        workers: int,
    ) -> None:
        self.performer = performer
        self.noted = noted
        self.controller: Controller[Key] = Controller("sandboxclaim-notes", self._note, clock, random, workers=workers)
        # What is still to be written, by claim, with the UID of the claim it is about.
        self._pending: dict[Key, tuple[str, Patch]] = {}

    def __contains__(self, claim: Key) -> bool:
        """Whether something is still to be written: until then nobody else needs to write it."""
        return claim in self._pending

    def put(self, claim: Key, uid: str, patch: Patch) -> None:
        self._pending[claim] = uid, patch
        self.controller.enqueue(claim)

    def drop(self, claim: Key) -> None:
        """The claim is gone. Nothing happens if there was nothing to note."""
        self._pending.pop(claim, None)

    async def _note(self, claim: Key) -> Result:
        pending = self._pending.get(claim)
        if pending is None:
            return DONE
        uid, patch = pending
        try:
            with suppress(Invalid):  # a patch for another UID, as some say it
                await self.performer.patch_if_there(patch, claim.namespace)
        except Conflict:
            known = self.performer.caches.claims.get(claim)
            if known is not None and known.uid == uid:
                raise
        if self._pending.get(claim) is pending:  # else it is another claim by now, with notes of its own
            del self._pending[claim]
        self.noted(claim, uid)
        return DONE
