"""Has claims looked at when something they depend on has changed. What is worth a look is in ``triggers``.

A claim that has no sandbox is news whenever it is seen: somebody waits for it, also if it was there before us.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from sandpool.api.kinds import SANDBOX_CLAIM
from sandpool.api.views import ClaimView, SandboxView, TemplateView, WarmPoolView
from sandpool.controllers.claim import predicates
from sandpool.controllers.informers import Caches, key_of
from sandpool.engine.cache.store import Key
from sandpool.engine.controller import DEFAULT_PRIORITY


class Enqueue(Protocol):
    def __call__(self, key: Key, priority: int | None = None) -> None: ...


class ClaimWatches:
    """``notice`` is for what passes write themselves. ``binding`` are the claims whose pass is writing a sandbox now
    and goes on from there by itself, with the name of that sandbox."""

    def __init__(
        self, caches: Caches, enqueue: Enqueue, notice: Callable[[Key], None], binding: Mapping[Key, str]
    ) -> None:
        self.caches = caches
        self.enqueue = enqueue
        self.notice = notice
        self.binding = binding
        caches.pools.subscribe(self._pool_changed, on_change_of=predicates.pool_spec)
        caches.templates.subscribe(self._template_changed, on_change_of=predicates.template_spec)
        caches.sandboxes.subscribe(self._sandbox_changed, on_change_of=predicates.sandbox_state)
        caches.sandboxes.subscribe(self._owner_changed, on_change_of=lambda sandbox: sandbox.owner)
        caches.claims.subscribe(self._claim_changed, on_change_of=predicates.claim_spec)
        caches.claims.subscribe(self._status_changed, on_change_of=predicates.claim_status)
        caches.claims.subscribe(self._note_changed, on_change_of=predicates.wrong_reference)

    def _claim_changed(self, key: Key, old: ClaimView | None, new: ClaimView | None) -> None:
        self.enqueue(key, DEFAULT_PRIORITY if new is not None and not new.sandbox_name else None)

    def _status_changed(self, key: Key, old: ClaimView | None, new: ClaimView | None) -> None:
        if old is not None and new is not None:
            self.notice(key)

    def _note_changed(self, key: Key, old: ClaimView | None, new: ClaimView | None) -> None:
        if new is not None and predicates.wrong_reference(new):
            self.notice(key)

    def _sandbox_changed(self, key: Key, old: SandboxView | None, new: SandboxView | None) -> None:
        sandbox = new if new is not None else old
        if sandbox is not None and (claim := _claim_of(sandbox)) is not None:
            self.enqueue(claim)

    def _owner_changed(self, key: Key, old: SandboxView | None, new: SandboxView | None) -> None:
        """Somebody else has made the sandbox a claim's; perhaps while the claim is being given another one."""
        if old is None or new is None:
            return
        claim = _claim_of(new)
        if claim is not None and self.binding.get(claim) != key.name:
            self.enqueue(claim)

    def _pool_changed(self, key: Key, old: WarmPoolView | None, new: WarmPoolView | None) -> None:
        for claim in self.caches.pool_claims(key.namespace, key.name):
            if predicates.needs_pool(claim):
                self.enqueue(key_of(claim))

    def _template_changed(self, key: Key, old: TemplateView | None, new: TemplateView | None) -> None:
        for pool in self.caches.template_pools(key.namespace, key.name):
            for claim in self.caches.pool_claims(pool.namespace, pool.name):
                if predicates.needs_template(claim, is_new=old is None):
                    self.enqueue(key_of(claim))


def _claim_of(sandbox: SandboxView) -> Key | None:
    owner = sandbox.owner
    return Key(sandbox.namespace, owner.name) if owner is not None and owner.is_a(SANDBOX_CLAIM) else None
