"""Watches of the claim controller: which changes enqueue a claim, and which update the assigner.

**Predicates.** Most events need no reconcile: a starting sandbox reports several steps that its claim does not repeat,
and in a burst a pool's status changes with every claim. Each subscription names what it reads, and its handler is
called only if that changes. A sandbox that becomes free is no matter of these handlers: the assigner enqueues the claim
that is first in line.

**Priority.** A claim without a sandbox is enqueued with the priority of new work whenever it is seen, also if it
existed before this process, because a client waits for it.
"""

from __future__ import annotations

from typing import Final, Protocol

from sandpool.api import conditions
from sandpool.api.conditions import FINISHED, READY, STATE_LOST
from sandpool.api.kinds import SANDBOX_CLAIM, SANDBOX_WARM_POOL
from sandpool.api.labels import CLAIM_FIRST_READY_AT, SANDBOX_NAME
from sandpool.api.resource import Key, shared_key
from sandpool.api.views import ClaimView, NodeView, Owner, SandboxView, TemplateView, WarmPoolView
from sandpool.controllers.claim.assignment.assigner import Assigner
from sandpool.controllers.claim.assignment.candidates import candidate_of
from sandpool.controllers.claim.assignment.node_health import NodeHealth, has_failed
from sandpool.controllers.claim.expiry import NO_DEFAULTS, ClaimDefaults
from sandpool.controllers.claim.state import ClaimStates
from sandpool.controllers.informers import Caches, key_of
from sandpool.controllers.own_writes import OwnWriteFilter
from sandpool.controllers.revision import TemplateRevisions
from sandpool.engine.cache.store import reads
from sandpool.engine.clock import Clock
from sandpool.engine.controller import DEFAULT_PRIORITY

#: Reasons of a claim that a change of its template may resolve.
_UP_TO_THE_TEMPLATE: Final = frozenset(
    {
        conditions.ENV_VARS_INJECTION_REJECTED,
        conditions.VOLUME_CLAIM_TEMPLATES_ERROR,
        conditions.RECONCILER_ERROR,
        conditions.TEMPLATE_NOT_FOUND,
    }
)
# Conditions of a sandbox that its claim repeats.
_REPEATED: Final = frozenset({READY, FINISHED, STATE_LOST})


class Enqueue(Protocol):
    def __call__(self, key: Key, priority: int | None = None) -> None: ...


class ClaimWatches:
    """Enqueues a claim when an object that it depends on changes. ``own_writes`` takes the changes that a reconcile may
    have made itself."""

    def __init__(
        self, caches: Caches, states: ClaimStates, clock: Clock, enqueue: Enqueue, own_writes: OwnWriteFilter
    ) -> None:
        self.caches = caches
        self.states = states
        self.clock = clock
        self.enqueue = enqueue
        self.own_writes = own_writes

    def subscribe(self) -> None:
        caches = self.caches
        caches.pools.subscribe(self._pool_changed, on_change_of=pool_spec)
        caches.pools.subscribe(self._defaults_changed, on_change_of=ClaimDefaults.of)
        caches.templates.subscribe(self._template_changed, on_change_of=template_spec)
        caches.sandboxes.subscribe(self._sandbox_changed, on_change_of=sandbox_state)
        caches.sandboxes.subscribe(self._owner_changed, on_change_of=sandbox_owner)
        caches.claims.subscribe(self._claim_seen, on_change_of=claim_identity)
        caches.claims.subscribe(self._claim_changed, on_change_of=claim_spec)
        caches.claims.subscribe(self._status_changed, on_change_of=claim_status)
        caches.claims.subscribe(self._reference_changed, on_change_of=wrong_reference)

    def _claim_seen(self, key: Key, old: ClaimView | None, new: ClaimView | None) -> None:
        if new is None:
            if (state := self.states.get(key)) is not None:
                state.pending_annotations = None
        elif not new.annotations.get(CLAIM_FIRST_READY_AT):  # a claim that has been Ready is not measured again
            self.states.of(new).first_observed = self.clock.now()

    def _claim_changed(self, key: Key, old: ClaimView | None, new: ClaimView | None) -> None:
        self.enqueue(key, DEFAULT_PRIORITY if new is not None and not new.sandbox_name else None)

    def _status_changed(self, key: Key, old: ClaimView | None, new: ClaimView | None) -> None:
        if old is not None and new is not None:
            self.own_writes.enqueue(key)

    def _reference_changed(self, key: Key, old: ClaimView | None, new: ClaimView | None) -> None:
        if new is not None and wrong_reference(new):
            self.own_writes.enqueue(key)

    def _sandbox_changed(self, key: Key, old: SandboxView | None, new: SandboxView | None) -> None:
        sandbox = new if new is not None else old
        if sandbox is not None and (claim := _claim_of(sandbox)) is not None:
            self.enqueue(claim)

    def _owner_changed(self, key: Key, old: SandboxView | None, new: SandboxView | None) -> None:
        """Enqueue a claim that got a sandbox."""
        if old is not None and new is not None and (claim := _claim_of(new)) is not None:
            self.own_writes.enqueue(claim)

    def _pool_changed(self, key: Key, old: WarmPoolView | None, new: WarmPoolView | None) -> None:
        for claim in self.caches.pool_claims(key.namespace, key.name):
            if needs_pool(claim):
                self.enqueue(key_of(claim))

    def _defaults_changed(self, key: Key, old: WarmPoolView | None, new: WarmPoolView | None) -> None:
        """Enqueue all claims of a pool whose defaults have changed: their deadlines depend on them."""
        if any(ClaimDefaults.of(pool) != NO_DEFAULTS for pool in (old, new) if pool is not None):
            for claim in self.caches.pool_claims(key.namespace, key.name):
                self.enqueue(key_of(claim))

    def _template_changed(self, key: Key, old: TemplateView | None, new: TemplateView | None) -> None:
        for pool in self.caches.template_pools(key.namespace, key.name):
            for claim in self.caches.pool_claims(pool.namespace, pool.name):
                if needs_template(claim, is_new=old is None):
                    self.enqueue(key_of(claim))


class CandidateFeed:
    """Keeps the assigner's candidates in step with sandboxes, pools, templates and nodes."""

    def __init__(
        self, caches: Caches, revisions: TemplateRevisions, assigner: Assigner, node_health: NodeHealth
    ) -> None:
        self.caches = caches
        self.revisions = revisions
        self.assigner = assigner
        self.node_health = node_health

    def subscribe(self) -> None:
        caches = self.caches
        caches.nodes.subscribe(self._node_changed, on_change_of=lambda node: node.fit)
        caches.pools.subscribe(self._pool_changed, on_change_of=pool_spec)
        caches.templates.subscribe(self._template_changed, on_change_of=template_spec)
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
        """Recompute all candidates of a pool: their compatibility depends on the pool's template."""
        for sandbox in self.caches.pool_sandboxes(pool.namespace, pool.name):
            self._refresh(sandbox)

    def _refresh(self, sandbox: SandboxView) -> None:
        owner = sandbox.owner
        pool = None
        if owner is not None and owner.type is SANDBOX_WARM_POOL:
            pool = self.caches.pools.get(shared_key(sandbox.namespace, owner.name))
        revision = None if pool is None else self.revisions.of(pool.namespace, pool.template)
        candidate = candidate_of(sandbox, pool, revision)
        if candidate is None:
            self.assigner.forget(key_of(sandbox))
        else:
            self.assigner.update(candidate)


# --- predicates: what a handler reads --------------------------------------------------------------------------------


@reads("uid", exactly=True)
def claim_identity(claim: ClaimView) -> str:
    return claim.uid


@reads("uid", "generation", "deletion_timestamp", "labels", exactly=True)
def claim_spec(claim: ClaimView) -> tuple[object, ...]:
    """The part of a claim that users write; not the status and the annotations, which this controller writes."""
    return claim.uid, claim.generation, claim.deletion_timestamp, claim.labels


@reads("conditions", "sandbox_name", "pod_ips", exactly=True)
def claim_status(claim: ClaimView) -> tuple[object, ...]:
    """The status. This controller writes it, but a status that its last reconcile did not report is one that this
    process does not know: an answer was lost, or a predecessor wrote it last. No other event would correct it."""
    return claim.conditions, claim.sandbox_name, claim.pod_ips


@reads("annotations", "sandbox_name")
def wrong_reference(claim: ClaimView) -> str:
    """The sandbox that a claim's annotation names, if its status names another: a delayed or mistaken write."""
    annotated = claim.annotations.get(SANDBOX_NAME, "")
    return annotated if claim.sandbox_name and annotated != claim.sandbox_name else ""


@reads("owner", exactly=True)
def sandbox_owner(sandbox: SandboxView) -> Owner | None:
    return sandbox.owner


@reads("deletion_timestamp", "status")
def sandbox_state(sandbox: SandboxView) -> tuple[object, ...]:
    """The part of a sandbox that its claim's status repeats."""
    status = sandbox.status
    repeated = {each["type"]: each for each in status.conditions if each["type"] in _REPEATED}
    return sandbox.deleting, status.pod_ips, repeated


@reads("uid", "generation", exactly=True)
def pool_spec(pool: WarmPoolView) -> tuple[str, int]:
    return pool.uid, pool.generation


@reads("uid", "generation", exactly=True)
def template_spec(template: TemplateView) -> tuple[str, int]:
    return template.uid, template.generation


def needs_pool(claim: ClaimView) -> bool:
    """Whether a change of its pool concerns a claim: not if it has a sandbox."""
    return not claim.deleting and not claim.sandbox_name


def needs_template(claim: ClaimView, *, is_new: bool) -> bool:
    """Whether a change of the template concerns a claim. A new template does; a changed one only if the template may be
    the reason why the claim was rejected."""
    return not claim.deleting and (is_new or claim.reason(READY) in _UP_TO_THE_TEMPLATE)


def _claim_of(sandbox: SandboxView) -> Key | None:
    owner = sandbox.owner
    return shared_key(sandbox.namespace, owner.name) if owner is not None and owner.type is SANDBOX_CLAIM else None
