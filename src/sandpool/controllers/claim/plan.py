"""What to do about a claim: every look at one begins here.

``decide`` chooses one thing to do. Most decisions end the matter after one write. ``RequestWarm`` needs the assigner
and goes on with ``adopt`` if the assigner has a sandbox, else with ``make``. ``settling`` computes the status.

A warm claim is thus one patch of the Sandbox, one of the claim's status, and one of its metadata off the path.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from sandpool.api import labels
from sandpool.api.claim import DELETE, DELETE_FOREGROUND
from sandpool.api.events import deleting_claim, sandbox_adopted, sandbox_provisioned
from sandpool.api.kinds import SANDBOX, SANDBOX_CLAIM
from sandpool.api.views import ClaimView, SandboxView, TemplateView
from sandpool.controllers.claim import adoption as adopting
from sandpool.controllers.claim import errors, expiry, metadata, metrics, ownership, provisioning
from sandpool.controllers.claim.assignment.candidates import requests
from sandpool.controllers.claim.decisions import (
    Adopt,
    CreateCold,
    Decision,
    DeleteClaim,
    DeleteSandboxes,
    Expire,
    NoOp,
    Observed,
    Reject,
    RequestWarm,
    Sync,
)
from sandpool.controllers.claim.duplicates import duplicates
from sandpool.controllers.claim.errors import ClaimError
from sandpool.controllers.claim.expiry import Phase
from sandpool.controllers.claim.ownership import Source
from sandpool.controllers.revision import TemplateRevision
from sandpool.controllers.writer import Create, Delete, Patch

#: How old a claim may become while it waits for a sandbox that is on its way.
WARM_GRACE: Final = timedelta(seconds=2)


def decide(observed: Observed) -> Decision:
    claim = observed.claim
    if claim.deleting:
        return NoOp()
    phase = expiry.phase(claim, observed.now)
    if phase is Phase.MARK:
        return Expire()
    if phase in (Phase.DELETE, Phase.DELETE_FOREGROUND):
        policy = DELETE if phase is Phase.DELETE else DELETE_FOREGROUND
        delete = Delete(SANDBOX_CLAIM, claim.name, claim.uid)
        return DeleteClaim(delete, phase is Phase.DELETE_FOREGROUND, deleting_claim(policy))
    try:
        return _release(observed) if phase is Phase.RETAIN else _serve(observed)
    except ClaimError as error:
        return Reject(error, has_expired=phase is Phase.RETAIN)


def _release(observed: Observed) -> DeleteSandboxes:
    sandboxes_to_delete = expiry.sandboxes_to_delete(observed.claim, observed.owned, observed.named)
    deletes = tuple(
        Delete(SANDBOX, sandbox.name, sandbox.uid) for sandbox in sandboxes_to_delete if not sandbox.deleting
    )
    return DeleteSandboxes(deletes, sandboxes_to_delete[0] if sandboxes_to_delete else None)


def _serve(observed: Observed) -> Decision:
    claim = observed.claim
    metadata.check(claim.additional_labels, claim.additional_annotations, observed.label_domains)
    found = ownership.resolve(claim, observed.owned, observed.named)
    if found.sandbox is not None:
        return _keep(observed, found.sandbox) if found.source is Source.BOUND else adopt(observed, found.sandbox)
    if observed.pool is None:
        raise errors.pool_not_found(claim.warm_pool)
    if found.source is Source.COLD:
        return make(observed, is_reference_stale=found.is_reference_stale)
    if observed.revision is not None:
        # What cannot be merged is found out before a sandbox is taken.
        adopting.pod_metadata(claim, observed.revision.spec["podTemplate"].get("metadata") or {}, "")
    wanted = requests(claim, observed.pool, observed.revision)
    if not wanted:
        return make(observed, is_reference_stale=found.is_reference_stale)
    return RequestWarm(wanted, _patience(claim, observed.now), found.is_reference_stale)


def _keep(observed: Observed, sandbox: SandboxView) -> Sync:
    claim = observed.claim
    others = duplicates(claim, observed.owned, sandbox)
    try:
        if observed.revision is None and (claim.additional_labels or claim.additional_annotations):
            _template(observed)
        body = adopting.sync_patch(claim, sandbox, observed.revision)
    except ClaimError as error:
        return Sync(sandbox, None, error, others)
    return Sync(sandbox, None if body is None else Patch(SANDBOX, sandbox.name, body), duplicates=others)


def _patience(claim: ClaimView, now: datetime) -> float:
    if claim.creation_timestamp is None:
        return 0.0
    return max(0.0, (claim.creation_timestamp + WARM_GRACE - now).total_seconds())


def adopt(observed: Observed, sandbox: SandboxView) -> Adopt | Reject:
    """Of the claim's lease, or one that was assigned to it long ago."""
    claim = observed.claim
    try:
        body = adopting.adoption_patch(claim, sandbox, observed.revision, _trace_context(observed))
    except ClaimError as error:
        return Reject(error)
    pool = claim.warm_pool if sandbox.owner is None else sandbox.owner.name
    sample = metrics.creation(claim, sandbox, "", labels.LAUNCH_WARM, pool)
    return Adopt(sandbox, Patch(SANDBOX, sandbox.name, body), sandbox_adopted(sandbox.name), sample)


def make(observed: Observed, *, is_reference_stale: bool = False) -> CreateCold | Reject:
    claim = observed.claim
    try:
        template, revision = _template(observed)
        body = provisioning.sandbox_for(claim, template, revision, _trace_context(observed))
    except ClaimError as error:
        return Reject(error)
    sample = metrics.creation(claim, None, template.name, labels.LAUNCH_COLD, claim.warm_pool)
    return CreateCold(Create(SANDBOX, body), sandbox_provisioned(claim.name), sample, is_reference_stale)


def _template(observed: Observed) -> tuple[TemplateView, TemplateRevision]:
    if observed.pool is None:
        raise errors.pool_not_found(observed.claim.warm_pool)
    if observed.template is None or observed.revision is None:
        raise errors.template_not_found(observed.pool.template)
    return observed.template, observed.revision


def _trace_context(observed: Observed) -> str:
    return observed.claim.annotations.get(labels.TRACE_CONTEXT) or observed.trace_context
