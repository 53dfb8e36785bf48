"""Which news is worth a look at a claim.

Most news is not: a sandbox that starts reports half a dozen steps nobody who waits for it can use, and a pool in a
burst changes its status with every claim. A claim is looked at when what it would say, or could get, may have changed.
Sandboxes that become free are not here, the assigner wakes who waits for them.
"""

from __future__ import annotations

from typing import Final

from sandpool.api import conditions
from sandpool.api.conditions import FINISHED, READY, Condition
from sandpool.api.labels import SANDBOX_NAME
from sandpool.api.views import ClaimView, SandboxView, TemplateView, WarmPoolView

#: Why a claim may be waiting for its template to change.
_UP_TO_THE_TEMPLATE: Final = frozenset(
    {
        conditions.ENV_VARS_INJECTION_REJECTED,
        conditions.VOLUME_CLAIM_TEMPLATES_ERROR,
        conditions.RECONCILER_ERROR,
        conditions.TEMPLATE_NOT_FOUND,
    }
)


def claim_spec(claim: ClaimView) -> tuple[object, ...]:
    """The spec and what people write; not the status and the notes, which are ours."""
    return claim.uid, claim.generation, claim.deleting, claim.labels


def claim_status(claim: ClaimView) -> tuple[object, ...]:
    """The status. It is ours, but one that comes between two passes is one we do not know of: the answer was lost, or a
    predecessor wrote it with its last breath. Nobody else would ever put it right."""
    return claim.conditions, claim.sandbox_name, claim.pod_ips


def wrong_reference(claim: ClaimView) -> str:
    """The sandbox that is noted on a claim, if it has another one: that is a note which was under way for long, or of
    somebody who knew no better."""
    noted = claim.annotations.get(SANDBOX_NAME, "")
    return noted if claim.sandbox_name and noted != claim.sandbox_name else ""


def sandbox_state(sandbox: SandboxView) -> tuple[bool, tuple[str, ...], Condition | None, Condition | None]:
    """What a claim repeats of its sandbox; nothing else about it matters to the claim."""
    status = sandbox.status
    return sandbox.deleting, status.pod_ips, status.condition(READY), status.condition(FINISHED)


def pool_spec(pool: WarmPoolView) -> tuple[str, int]:
    """A pool that was made anew, or whose spec has changed. Its status is nothing to claims."""
    return pool.uid, pool.generation


def template_spec(template: TemplateView) -> tuple[str, int]:
    return template.uid, template.generation


def needs_pool(claim: ClaimView) -> bool:
    """Whether a claim of a pool that changed is to be looked at: one that has a sandbox needs no pool any more."""
    return not claim.deleting and not claim.sandbox_name


def needs_template(claim: ClaimView, *, is_new: bool) -> bool:
    """Whether a claim of a pool whose template changed is to be looked at. A new template is for all; a change of one
    that was there only for those who may have been refused because of what it said."""
    return not claim.deleting and (is_new or claim.reason(READY) in _UP_TO_THE_TEMPLATE)
