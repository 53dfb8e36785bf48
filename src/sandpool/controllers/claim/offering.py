"""Keeps the assigner told of what pools have to give away, and from where not to, as the watch shows it."""

from __future__ import annotations

from sandpool.api.kinds import SANDBOX_WARM_POOL
from sandpool.api.views import NodeView, SandboxView, TemplateView, WarmPoolView
from sandpool.controllers.claim import predicates
from sandpool.controllers.claim.assignment.assigner import Assigner
from sandpool.controllers.claim.assignment.candidates import candidate_of
from sandpool.controllers.claim.assignment.node_health import NodeHealth, has_failed
from sandpool.controllers.informers import Caches, key_of
from sandpool.controllers.revision import TemplateRevisions
from sandpool.engine.cache.store import Key


class CandidateFeed:
    """Subscribes to what decides about an offer: the sandbox, its pool and the pool's template; and about its node."""

    def __init__(
        self, caches: Caches, revisions: TemplateRevisions, assigner: Assigner, node_health: NodeHealth
    ) -> None:
        self.caches = caches
        self.revisions = revisions
        self.assigner = assigner
        self.node_health = node_health
        caches.nodes.subscribe(self._node_changed, on_change_of=lambda node: node.fit)
        caches.pools.subscribe(self._pool_changed, on_change_of=predicates.pool_spec)
        caches.templates.subscribe(self._template_changed, on_change_of=predicates.template_spec)
        caches.sandboxes.subscribe(self._sandbox_changed)

    def _sandbox_changed(self, key: Key, old: SandboxView | None, new: SandboxView | None) -> None:
        if new is None:
            self.assigner.forget(key)
        else:
            if old is not None and old.status.node_name and has_failed(old, new):
                self.node_health.record_failure(old.status.node_name, new.uid)
            self._refresh(new)

    def _node_changed(self, key: Key, old: NodeView | None, new: NodeView | None) -> None:
        self.node_health.set_fit(key.name, fit=new is None or new.fit)

    def _pool_changed(self, key: Key, old: WarmPoolView | None, new: WarmPoolView | None) -> None:
        self._refresh_pool(key)

    def _template_changed(self, key: Key, old: TemplateView | None, new: TemplateView | None) -> None:
        for pool in self.caches.template_pools(key.namespace, key.name):
            self._refresh_pool(key_of(pool))

    def _refresh_pool(self, pool: Key) -> None:
        """What the pool has may be worth something else now."""
        for sandbox in self.caches.pool_sandboxes(pool.namespace, pool.name):
            self._refresh(sandbox)

    def _refresh(self, sandbox: SandboxView) -> None:
        owner = sandbox.owner
        pool = None
        if owner is not None and owner.is_a(SANDBOX_WARM_POOL):
            pool = self.caches.pools.get(Key(sandbox.namespace, owner.name))
        revision = None if pool is None else self.revisions.of(pool.namespace, pool.template)
        candidate = candidate_of(sandbox, pool, revision)
        if candidate is None:
            self.assigner.forget(key_of(sandbox))
        else:
            self.assigner.update(candidate)
