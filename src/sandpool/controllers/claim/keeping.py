"""Keeps what a claim has: its sandbox is put right where the claim has changed, and is the only one.

A second sandbox comes from a process that died while it gave one, see ``duplicates``. Before any is deleted the API is
asked which of them the claim says it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sandpool.api.events import surplus_deleted
from sandpool.api.kinds import SANDBOX, SANDBOX_CLAIM
from sandpool.api.views import ClaimView, SandboxView
from sandpool.controllers.claim import errors
from sandpool.controllers.claim.decisions import Observed, Sync
from sandpool.controllers.claim.duplicates import duplicate_deletions
from sandpool.controllers.claim.errors import is_refusal
from sandpool.controllers.claim.reporter import StatusReporter
from sandpool.controllers.informers import Caches, key_of
from sandpool.controllers.writer import ApiWriter
from sandpool.engine.controller import Result
from sandpool.kube.errors import ApiError, Conflict, NotFound

_AGAIN: Final = Result(0.0)


class Syncer:
    def __init__(self, caches: Caches, writer: ApiWriter, reporter: StatusReporter) -> None:
        self.caches = caches
        self.writer = writer
        self.reporter = reporter

    async def keep(self, observed: Observed, decision: Sync) -> Result:
        sandbox, error = decision.sandbox, decision.error
        self.reporter.confirm_adoption(observed.claim, sandbox.name)
        if decision.patch is not None:
            try:
                answer = await self.writer.patch(decision.patch, sandbox.namespace)
            except NotFound:
                self.caches.sandboxes.record_deletion(key_of(sandbox), sandbox.uid)
                return _AGAIN
            except ApiError as api_error:
                if not is_refusal(api_error):
                    raise
                error = errors.failure(api_error.message)
            else:
                sandbox = SandboxView.from_object(answer)
        result = await self.reporter.report(observed, sandbox, error)
        if decision.duplicates and not await self._dismiss(observed.claim, sandbox, decision.duplicates):
            return _AGAIN
        return result

    async def _dismiss(self, claim: ClaimView, stays: SandboxView, duplicates: Sequence[SandboxView]) -> bool:
        """Delete the sandboxes that are too many, and whether that could be decided."""
        try:
            answer = await self.writer.client.get(SANDBOX_CLAIM, claim.name, claim.namespace)
        except NotFound:
            return True
        self.caches.claims.record_write(answer)
        deletes = duplicate_deletions(claim, ClaimView.from_object(answer), stays, duplicates)
        for delete in deletes:
            try:
                await self.writer.delete(delete, claim.namespace)
            except Conflict:
                await self.writer.refresh(SANDBOX, delete.name, claim.namespace)
                return False
            self.reporter.record_event(claim, surplus_deleted(delete.name, stays.name))
        return bool(deletes)
