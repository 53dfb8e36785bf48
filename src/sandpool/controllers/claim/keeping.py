"""Keeps what a claim has: its sandbox is put right where the claim has changed, and is the only one.

A second sandbox comes from a process that died while it gave one, see ``surplus``. Before any is deleted the API is
asked which of them the claim says it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sandpool.api.events import surplus_deleted
from sandpool.api.kinds import SANDBOX, SANDBOX_CLAIM
from sandpool.api.views import ClaimView, SandboxView
from sandpool.controllers.caches import Caches, key_of
from sandpool.controllers.claim import problems
from sandpool.controllers.claim.decisions import Keep, Observed
from sandpool.controllers.claim.problems import is_refusal
from sandpool.controllers.claim.surplus import deletions
from sandpool.controllers.claim.voice import Voice
from sandpool.controllers.perform import Performer
from sandpool.engine.controller import Result
from sandpool.kube.errors import ApiError, Conflict, NotFound

_AGAIN: Final = Result(0.0)


class Keeping:
    def __init__(self, caches: Caches, performer: Performer, voice: Voice) -> None:
        self.caches = caches
        self.performer = performer
        self.voice = voice

    async def keep(self, observed: Observed, decision: Keep) -> Result:
        sandbox, problem = decision.sandbox, decision.problem
        self.voice.gave(observed.claim, sandbox.name)
        if decision.patch is not None:
            try:
                answer = await self.performer.patch(decision.patch, sandbox.namespace)
            except NotFound:
                self.caches.sandboxes.record_deletion(key_of(sandbox), sandbox.uid)
                return _AGAIN
            except ApiError as error:
                if not is_refusal(error):
                    raise
                problem = problems.failure(error.message)
            else:
                sandbox = SandboxView.from_object(answer)
        result = await self.voice.settle(observed, sandbox, problem)
        if decision.surplus and not await self._dismiss(observed.claim, sandbox, decision.surplus):
            return _AGAIN
        return result

    async def _dismiss(self, claim: ClaimView, stays: SandboxView, surplus: Sequence[SandboxView]) -> bool:
        """Delete the sandboxes that are too many, and whether that could be decided."""
        try:
            answer = await self.performer.client.get(SANDBOX_CLAIM, claim.name, claim.namespace)
        except NotFound:
            return True
        self.caches.claims.record_write(answer)
        deletes = deletions(claim, ClaimView.from_object(answer), stays, surplus)
        for delete in deletes:
            try:
                await self.performer.delete(delete, claim.namespace)
            except Conflict:
                await self.performer.look_for(SANDBOX, delete.name, claim.namespace)
                return False
            self.voice.tell(claim, surplus_deleted(delete.name, stays.name))
        return bool(deletes)
