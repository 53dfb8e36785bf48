"""Writes that a sandbox is a claim's, and finds out what became of it if the API says no.

Somebody may have written the sandbox since it was looked at, and then the API refuses. The same sandbox is looked at
again, at the API itself, and ``conflict`` tells what that means; another one is never tried instead. If the pool or its
template has changed meanwhile, the sandbox may not be what the claim is to get any more, and all is decided anew.
"""

from __future__ import annotations

from typing import Final

from sandpool.api.kinds import SANDBOX
from sandpool.api.views import ClaimView, SandboxView, TemplateView, WarmPoolView
from sandpool.controllers.claim import conflict
from sandpool.controllers.claim.decisions import Adopt, Observed, Reject
from sandpool.controllers.claim.errors import ClaimError
from sandpool.controllers.claim.plan import adopt
from sandpool.controllers.informers import Caches, key_of
from sandpool.controllers.writer import ApiWriter
from sandpool.engine.cache.store import Key
from sandpool.kube.errors import Conflict, NotFound

# How often a sandbox is tried that others keep writing.
_ATTEMPTS: Final = 4


class Binder:
    def __init__(self, caches: Caches, writer: ApiWriter) -> None:
        self.caches = caches
        self.writer = writer

    async def bind(self, observed: Observed, adoption: Adopt) -> SandboxView:
        """Adopt the sandbox and return it. Raises ``ClaimError`` if the claim cannot have it. Without an answer
        the failure is raised as it is, and the sandbox may or may not be the claim's."""
        claim, name = observed.claim, adoption.sandbox.name
        for _ in range(_ATTEMPTS):
            try:
                return SandboxView.from_object(await self.writer.patch(adoption.patch, claim.namespace))
            except (Conflict, NotFound):
                fresh = await self._look_at(adoption.sandbox)
            is_adopted = conflict.is_adopted(claim, name, fresh)
            assert fresh is not None, "a sandbox that is gone is a problem"
            if is_adopted:
                return fresh
            if not self._is_as_observed(observed):
                raise conflict.outdated(claim, name)
            again = adopt(observed, fresh)
            if isinstance(again, Reject):
                raise again.error
            adoption = again
        raise conflict.gave_up(claim, name)

    def is_lost(self, claim: ClaimView, name: str) -> bool:
        """Whether a sandbox that could not be bound is not the pool's any more, by what the last look at it showed."""
        try:
            return conflict.is_adopted(claim, name, self.caches.sandboxes.get(Key(claim.namespace, name)))
        except ClaimError:
            return True

    def _is_as_observed(self, observed: Observed) -> bool:
        """Whether the pool and its template are known as what the decision was made on."""
        namespace = observed.claim.namespace
        pool = self.caches.pools.get(Key(namespace, observed.claim.warm_pool))
        template = None if pool is None else self.caches.templates.get(Key(namespace, pool.template))
        return _edition(pool) == _edition(observed.pool) and _edition(template) == _edition(observed.template)

    async def _look_at(self, sandbox: SandboxView) -> SandboxView | None:
        """The sandbox as the API has it, which the cache then has, too."""
        try:
            answer = await self.writer.client.get(SANDBOX, sandbox.name, sandbox.namespace)
        except NotFound:
            self.caches.sandboxes.record_deletion(key_of(sandbox), sandbox.uid)
            return None
        self.caches.sandboxes.record_write(answer)
        return SandboxView.from_object(answer)


def _edition(view: WarmPoolView | TemplateView | None) -> tuple[str, int] | None:
    """Which object, and which of its specs; what it says of itself does not matter."""
    return None if view is None else (view.uid, view.generation)
