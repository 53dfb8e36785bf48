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
from sandpool.controllers.claim.defaults import NO_DEFAULTS, ClaimDefaults
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


def watch_claims(
    caches: Caches, states: ClaimStates, clock: Clock, enqueue: Enqueue, own_writes: OwnWriteFilter
) -> None:
    """Enqueue a claim when an object that it depends on changes. ``own_writes`` takes the changes that a reconcile may
    have made itself."""

    def claim_seen(key: Key, old: ClaimView | None, new: ClaimView | None) -> None:
        if new is None:
            if (state := states.get(key)) is not None:
                state.pending_annotations = None
        elif not new.annotations.get(CLAIM_FIRST_READY_AT):  # a claim that has been Ready is not measured again
            states.of(new).first_observed = clock.now()

    def claim_changed(key: Key, old: ClaimView | None, new: ClaimView | None) -> None:
        enqueue(key, DEFAULT_PRIORITY if new is not None and not new.sandbox_name else None)

    def status_changed(key: Key, old: ClaimView | None, new: ClaimView | None) -> None:
        if old is not None and new is not None:
            own_writes.enqueue(key)

    def reference_changed(key: Key, old: ClaimView | None, new: ClaimView | None) -> None:
        if new is not None and wrong_reference(new):
            own_writes.enqueue(key)

    def sandbox_changed(key: Key, old: SandboxView | None, new: SandboxView | None) -> None:
        sandbox = new if new is not None else old
        if sandbox is not None and (claim := _claim_of(sandbox)) is not None:
            enqueue(claim)

    def owner_changed(key: Key, old: SandboxView | None, new: SandboxView | None) -> None:
        """Enqueue a claim that got a sandbox."""
        if old is not None and new is not None and (claim := _claim_of(new)) is not None:
            own_writes.enqueue(claim)

    def pool_changed(key: Key, old: WarmPoolView | None, new: WarmPoolView | None) -> None:
        for claim in caches.pool_claims(key.namespace, key.name):
            if needs_pool(claim):
                enqueue(key_of(claim))

    def defaults_changed(key: Key, old: WarmPoolView | None, new: WarmPoolView | None) -> None:
        """Enqueue all claims of a pool whose defaults have changed: their deadlines depend on them."""
        if any(ClaimDefaults.of(pool) != NO_DEFAULTS for pool in (old, new) if pool is not None):
            for claim in caches.pool_claims(key.namespace, key.name):
                enqueue(key_of(claim))

    def template_changed(key: Key, old: TemplateView | None, new: TemplateView | None) -> None:
        for pool in caches.template_pools(key.namespace, key.name):
            for claim in caches.pool_claims(pool.namespace, pool.name):
                if needs_template(claim, is_new=old is None):
                    enqueue(key_of(claim))

    caches.pools.subscribe(pool_changed, on_change_of=pool_spec)
    caches.pools.subscribe(defaults_changed, on_change_of=ClaimDefaults.of)
    caches.templates.subscribe(template_changed, on_change_of=template_spec)
    caches.sandboxes.subscribe(sandbox_changed, on_change_of=sandbox_state)
    caches.sandboxes.subscribe(owner_changed, on_change_of=sandbox_owner)
    caches.claims.subscribe(claim_seen, on_change_of=claim_identity)
    caches.claims.subscribe(claim_changed, on_change_of=claim_spec)
    caches.claims.subscribe(status_changed, on_change_of=claim_status)
    caches.claims.subscribe(reference_changed, on_change_of=wrong_reference)


def watch_candidates(caches: Caches, revisions: TemplateRevisions, assigner: Assigner, node_health: NodeHealth) -> None:
    """Keep the assigner's candidates in step with sandboxes, pools, templates and nodes."""

    def sandbox_changed(key: Key, old: SandboxView | None, new: SandboxView | None) -> None:
        if new is None:
            assigner.forget(key)
        else:
            if old is not None and old.status.node_name and has_failed(old, new):
                node_health.record_failure(old.status.node_name, new.uid)
            refresh(new)

    def node_changed(key: Key, old: NodeView | None, new: NodeView | None) -> None:
        node_health.set_fit(key.name, fit=new is None or new.fit)

    def pool_changed(key: Key, old: WarmPoolView | None, new: WarmPoolView | None) -> None:
        refresh_pool(key)

    def template_changed(key: Key, old: TemplateView | None, new: TemplateView | None) -> None:
        for pool in caches.template_pools(key.namespace, key.name):
            refresh_pool(key_of(pool))

    def refresh_pool(pool: Key) -> None:
        """Recompute all candidates of a pool: their compatibility depends on the pool's template."""
        for sandbox in caches.pool_sandboxes(pool.namespace, pool.name):
            refresh(sandbox)

    def refresh(sandbox: SandboxView) -> None:
        owner = sandbox.owner
        pool = None
        if owner is not None and owner.type is SANDBOX_WARM_POOL:
            pool = caches.pools.get(shared_key(sandbox.namespace, owner.name))
        revision = None if pool is None else revisions.of(pool.namespace, pool.template)
        candidate = candidate_of(sandbox, pool, revision)
        if candidate is None:
            assigner.forget(key_of(sandbox))
        else:
            assigner.update(candidate)

    caches.nodes.subscribe(node_changed, on_change_of=lambda node: node.fit)
    caches.pools.subscribe(pool_changed, on_change_of=pool_spec)
    caches.templates.subscribe(template_changed, on_change_of=template_spec)
    caches.sandboxes.subscribe(sandbox_changed)


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
