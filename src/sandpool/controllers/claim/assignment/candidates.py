"""Candidates: which pooled sandboxes a claim may adopt, and which of them are equivalent.

Labels alone do not make a sandbox a member of a pool, because any writer can set them; its controller owner does.
"""

from __future__ import annotations

from sandpool.api import labels
from sandpool.api.kinds import SANDBOX_WARM_POOL
from sandpool.api.resource import shared_key
from sandpool.api.views import ClaimView, SandboxView, WarmPoolView
from sandpool.api.warmpool import RECREATE, ROLLING_UPDATE
from sandpool.controllers.claim.assignment.assigner import Candidate, Stage
from sandpool.controllers.claim.assignment.wait_queue import SandboxRequest
from sandpool.controllers.revision import TemplateRevision


def is_pooled(sandbox: SandboxView) -> bool:
    """Whether a pool owns the sandbox. The API version in the owner reference may be an old one."""
    return sandbox.owner is not None and sandbox.owner.type is SANDBOX_WARM_POOL


def is_adoptable(sandbox: SandboxView) -> bool:
    return (
        not sandbox.deleting
        and bool(sandbox.labels.get(labels.WARM_POOL))
        and bool(sandbox.labels.get(labels.TEMPLATE_REF_HASH))
        and is_pooled(sandbox)
    )


def refusal(sandbox: SandboxView, claim: ClaimView) -> str:
    """The reason why a claim may not adopt a sandbox; empty if it may."""
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
    """The candidate of a sandbox; None if claims cannot adopt it.

    ``pool`` and its ``revision`` are the cached ones; when either changes, so may the candidates of all its members. A
    sandbox whose owner reference has the pool's name and another UID is not a member.
    """
    if not is_adoptable(sandbox) or sandbox.owner is None:
        return None
    if pool is not None and pool.uid != sandbox.owner.uid:
        return None
    return Candidate(
        sandbox=shared_key(sandbox.namespace, sandbox.name),
        uid=sandbox.uid,
        pool=shared_key(sandbox.namespace, sandbox.owner.name),
        compatibility=compatibility(sandbox, revision),
        node=sandbox.status.node_name,
        stage=stage_of(sandbox),
    )


def stage_of(sandbox: SandboxView) -> Stage:
    if not sandbox.status.pod_ips:
        return Stage.PENDING
    return Stage.READY if sandbox.ready else Stage.STARTING


def compatibility(sandbox: SandboxView, revision: TemplateRevision | None) -> str:
    """A value that is equal for sandboxes of the same template and revision.

    A sandbox with another hash but the same meaning counts as current: only metadata of the template changed, or
    another implementation created it.
    """
    made_from = _kind(sandbox.labels.get(labels.TEMPLATE_REF_HASH, ""), sandbox.labels.get(labels.TEMPLATE_HASH, ""))
    if revision is None or made_from == current(revision):
        return made_from
    is_current = sandbox.labels.get(labels.TEMPLATE_REF_HASH) == revision.ref_hash and revision.matches(sandbox)
    return current(revision) if is_current else made_from


def current(revision: TemplateRevision) -> str:
    """The compatibility of sandboxes that the template creates now."""
    return _kind(revision.ref_hash, revision.hash)


def _kind(ref_hash: str, revision_hash: str) -> str:
    return f"{ref_hash}/{revision_hash}"


def requests_of(claim: ClaimView, pool: WarmPoolView, revision: TemplateRevision | None) -> tuple[SandboxRequest, ...]:
    """The claim's requests to the assigner, best first; it waits with the last one.

    Under Recreate only the current template is acceptable, so without a readable template there is no request. During a
    rolling update an old sandbox is better than none. Otherwise the oldest revision is used up first. A claim with
    variables gets the current revision only, because the policy for them is the current template's.
    """
    key, of = shared_key(claim.namespace, claim.name), shared_key(claim.namespace, claim.warm_pool)
    exact = () if revision is None else (SandboxRequest(key, of, current(revision)),)
    if pool.strategy == RECREATE or claim.env:
        return exact
    whichever = SandboxRequest(key, of, None)
    return (*exact, whichever) if pool.strategy == ROLLING_UPDATE else (whichever,)
