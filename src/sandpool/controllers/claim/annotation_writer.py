"""Writes on claims what is to be noted when they have been served: few at a time, and never in anybody's way.

A note that the API refuses because of the UID in it is about a claim that has been deleted and made again under its
name, and is dropped. The same answer, a conflict, may mean that somebody else wrote the claim at that very moment; so
as long as we know the claim by that UID, the note is tried again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import NamedTuple

from sandpool.controllers.writer import ApiWriter, Patch
from sandpool.engine.cache.store import Key
from sandpool.engine.clock import Clock
from sandpool.engine.controller import DONE, Controller, Result
from sandpool.kube.errors import Conflict, Invalid


class _Note(NamedTuple):
    """``uid`` is that of the claim, ``sandbox`` the name of what the claim had when this was decided, if anything."""

    uid: str
    sandbox: str
    patch: Patch


class AnnotationWriter:
    """``noted`` is called with a claim and its UID when there is no more to note on it."""

    def __init__(
        self,
        writer: ApiWriter,
        clock: Clock,
        random: Random,
        noted: Callable[[Key, str], object],
        *,
        workers: int,
    ) -> None:
        self.writer = writer
        self.noted = noted
        self.controller: Controller[Key] = Controller("sandboxclaim-notes", self._note, clock, random, workers=workers)
        # What is still to be written, by claim.
        self._pending: dict[Key, _Note] = {}

    def pending(self, claim: Key, uid: str) -> str | None:
        """The sandbox of the claim, as far as it is still to be written: until then nobody else needs to write it. None
        if nothing is. What is still to be written on an earlier claim of the name says nothing about this one."""
        found = self._pending.get(claim)
        return found.sandbox if found is not None and found.uid == uid else None

    def put(self, claim: Key, uid: str, sandbox: str, patch: Patch) -> None:
        """Instead of what was to be written."""
        self._pending[claim] = _Note(uid, sandbox, patch)
        self.controller.enqueue(claim)

    def drop(self, claim: Key) -> None:
        """The claim is gone. Nothing happens if there was nothing to note."""
        self._pending.pop(claim, None)

    async def _note(self, claim: Key) -> Result:
        pending = self._pending.get(claim)
        if pending is None:
            return DONE
        uid = pending.uid
        try:
            with suppress(Invalid):  # a patch for another UID, as some say it
                await self.writer.patch_if_there(pending.patch, claim.namespace)
        except Conflict:
            known = self.writer.caches.claims.get(claim)
            if known is not None and known.uid == uid:
                raise
        if self._pending.get(claim) is pending:  # else it is another claim by now, with notes of its own
            del self._pending[claim]
        self.noted(claim, uid)
        return DONE
