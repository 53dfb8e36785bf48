"""Sandboxes a pool would give away: which they are, who may have them, and which are as good as each other.

Only what cannot be put on by somebody else counts: labels alone do not make a sandbox a pool's, its owner does.
"""

from __future__ import annotations

from sandpool.api import labels
from sandpool.api.kinds import SANDBOX_WARM_POOL
from sandpool.api.views import ClaimView, SandboxView, WarmPoolView
from sandpool.api.warmpool import RECREATE, ROLLING_UPDATE
from sandpool.controllers.claim.assignment.assigner import Candidate, Stage
from sandpool.controllers.claim.assignment.wait_queue import SandboxRequest
from sandpool.controllers.revision import TemplateRevision


def is_pooled(sandbox: SandboxView) -> bool:
    """Whether a pool owns it. The version in the owner reference does not matter, it may be an old one."""
    return sandbox.owner is not None and sandbox.owner.is_a(SANDBOX_WARM_POOL)


def is_adoptable(sandbox: SandboxView) -> bool:
    return (
        not sandbox.deleting
        and bool(sandbox.labels.get(labels.WARM_POOL))
        and bool(sandbox.labels.get(labels.TEMPLATE_REF_HASH))
        and is_pooled(sandbox)
    )


def refusal(sandbox: SandboxView, claim: ClaimView) -> str:
    """Why a claim may not have a sandbox; empty if it may."""
    if sandbox.namespace != claim.namespace:
        return f'sandbox is in namespace "{sandbox.namespace}", not "{claim.namespace}"'
    if sandbox.deleting:
        return "sandbox is being deleted"
    if not is_adoptable(sandbox) or sandbox.owner is None:
        return "sandbox is not a free member of a warm pool"
    if sandbox.owner.name != claim.warm_pool:
        return f'sandbox is of warm pool "{sandbox.owner.name}", not "{claim.warm_pool}"'
    return ""


def candidate_of(
    sandbox: SandboxView, pool: WarmPoolView | None, revision: TemplateRevision | None
) -> Candidate | None:
    """What the assigner is told of a sandbox; None if it is to be forgotten.

    ``pool`` and its ``revision`` are what is known of the sandbox's pool now; when either changes, so may the offers
    of all its members. A sandbox that names as its owner a pool of the right name and another UID is not that pool's.
    """
    if not is_adoptable(sandbox) or sandbox.owner is None:
        return None
    if pool is not None and pool.uid != sandbox.owner.uid:
        return None
    return Candidate(
        sandbox=(sandbox.namespace, sandbox.name),
        uid=sandbox.uid,
        pool=(sandbox.namespace, sandbox.owner.name),
        compatibility=compatibility(sandbox, revision),
        node=sandbox.status.node_name,
        stage=stage_of(sandbox),
    )


def stage_of(sandbox: SandboxView) -> Stage:
    if not sandbox.status.pod_ips:
        return Stage.PENDING
    return Stage.READY if sandbox.ready else Stage.STARTING


def compatibility(sandbox: SandboxView, revision: TemplateRevision | None) -> str:
    """Equal for sandboxes made from the same template and blueprint. One whose hash differs although it means the same,
    because only metadata of the template changed or another implementation made it, is as good as a current one."""
    made_from = _kind(sandbox.labels.get(labels.TEMPLATE_REF_HASH, ""), sandbox.labels.get(labels.TEMPLATE_HASH, ""))
    if revision is None or made_from == current(revision):
        return made_from
    is_current = sandbox.labels.get(labels.TEMPLATE_REF_HASH) == revision.ref_hash and revision.matches(sandbox)
    return current(revision) if is_current else made_from


def current(revision: TemplateRevision) -> str:
    """The compatibility of what the template makes now."""
    return _kind(revision.ref_hash, revision.hash)


def _kind(ref_hash: str, blueprint_hash: str) -> str:
    return f"{ref_hash}/{blueprint_hash}"


def requests_of(claim: ClaimView, pool: WarmPoolView, revision: TemplateRevision | None) -> tuple[SandboxRequest, ...]:
    """What to ask the assigner for, the best first; who waits, waits for the last one.

    Under Recreate nothing but the current template will do, so if the template cannot be read there is nothing to ask
    for. During a rolling update an old sandbox is better than none. Otherwise what is oldest is used up first.
    """
    key, of = (claim.namespace, claim.name), (claim.namespace, claim.warm_pool)
    exact = () if revision is None else (SandboxRequest(key, of, current(revision)),)
    if pool.strategy == RECREATE:
        return exact
    whichever = SandboxRequest(key, of, None)
    return (*exact, whichever) if pool.strategy == ROLLING_UPDATE else (whichever,)
