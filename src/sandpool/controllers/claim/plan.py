"""The decision about a claim: a pure function from ``Observed`` to one ``Decision``.

Most decisions take one write. ``RequestWarm`` needs the assigner: the controller goes on with ``plan_adoption`` if the
assigner has a sandbox, else with ``plan_creation``. ``status.compute_status`` then says what the claim's status
becomes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sandpool.api import labels
from sandpool.api.claim import DELETE, DELETE_FOREGROUND
from sandpool.api.events import EventSpec, deleting_claim, sandbox_adopted, sandbox_provisioned
from sandpool.api.kinds import SANDBOX, SANDBOX_CLAIM
from sandpool.api.views import ClaimView, SandboxView, TemplateView, WarmPoolView
from sandpool.controllers.claim import adoption, errors, expiry, late_binding, metrics, ownership, provisioning
from sandpool.controllers.claim.assignment.candidates import requests_of
from sandpool.controllers.claim.assignment.wait_queue import SandboxRequest
from sandpool.controllers.claim.errors import ClaimError
from sandpool.controllers.claim.expiry import Phase
from sandpool.controllers.claim.metrics import Sample
from sandpool.controllers.claim.ownership import Source, duplicates
from sandpool.controllers.options import DEFAULT_LABEL_DOMAINS
from sandpool.controllers.revision import TemplateRevision
from sandpool.controllers.writer import Create, Delete, Patch

#: A claim younger than this waits for a pooled sandbox that is still starting. If none is, or as many other claims wait
#: for it, it does not wait (``Assigner.is_worth_waiting``). A claim that waited counts as warm.
WARM_GRACE: Final = timedelta(seconds=2)


@dataclass(frozen=True, slots=True)
class Observed:
    """A claim and everything that the decision about it depends on."""

    claim: ClaimView
    owned: Sequence[SandboxView]  # sandboxes whose controller is the claim
    named: Mapping[str, SandboxView]  # those of ``ownership.referenced_names`` that exist
    pool: WarmPoolView | None
    template: TemplateView | None  # of the pool or, if the claim has a sandbox, of that
    revision: TemplateRevision | None  # of the template; None if there is no template
    now: datetime  # when the reconcile began
    first_observed: datetime | None = None
    trace_context: str = ""
    # Whether the two above are written on the claim. Latency is measured in any case.
    annotate_observability: bool = True
    label_domains: Sequence[str] = DEFAULT_LABEL_DOMAINS
    abandoned: str = ""  # sandbox that the claim's annotation names and that this process failed to adopt
    # Why this process hands no variables to a warm sandbox now, for this claim or at all; see ``late_binding``.
    binding_obstacle: str = ""
    claim_limit: int | None = None  # of the namespace, if it keeps the claim from getting a sandbox

    @property
    def binds_late(self) -> bool:
        """Whether the claim has variables that can be handed to a warm sandbox."""
        if not self.claim.env or self.template is None or not late_binding.opted_in(self.template):
            return False
        return not self.late_binding_obstacle

    @property
    def late_binding_obstacle(self) -> str:
        """Why the claim's variables cannot be handed over; empty if they can, if there are none, or if the template
        does not opt in."""
        if not self.claim.env or self.template is None or not late_binding.opted_in(self.template):
            return ""
        return late_binding.obstacle(self.claim, self.template) or self.binding_obstacle


@dataclass(frozen=True, slots=True)
class NoOp:
    """The claim is being deleted. The garbage collector deletes its sandbox."""


@dataclass(frozen=True, slots=True)
class Expire:
    """Write that the claim has expired, and reconcile again at once."""


@dataclass(frozen=True, slots=True)
class DeleteClaim:
    """Delete an expired claim; ``foreground``: after its sandbox."""

    delete: Delete
    foreground: bool
    event: EventSpec


@dataclass(frozen=True, slots=True)
class DeleteSandboxes:
    """Delete the sandboxes of an expired claim that is retained. ``sandbox`` is one that still exists."""

    deletes: tuple[Delete, ...]
    sandbox: SandboxView | None


@dataclass(frozen=True, slots=True)
class Sync:
    """The claim has its sandbox. Patch it if there is a ``patch``, and delete the ``duplicates``."""

    sandbox: SandboxView
    patch: Patch | None
    error: ClaimError | None = None
    duplicates: tuple[SandboxView, ...] = ()


@dataclass(frozen=True, slots=True)
class Adopt:
    """Make a pooled sandbox the claim's."""

    sandbox: SandboxView
    patch: Patch
    event: EventSpec
    sample: Sample


@dataclass(frozen=True, slots=True)
class RequestWarm:
    """Ask the assigner for each request in turn.

    If it has no ready sandbox but one is starting, wait for the last request, at most ``grace`` seconds. After that
    take a sandbox that is still starting, or create one.
    """

    requests: tuple[SandboxRequest, ...]
    grace: float
    is_reference_stale: bool


@dataclass(frozen=True, slots=True)
class CreateCold:
    """Create a sandbox for the claim. If it exists already, the error is ``errors.create_pending``."""

    create: Create
    event: EventSpec
    sample: Sample
    is_reference_stale: bool = False


@dataclass(frozen=True, slots=True)
class Reject:
    """The claim cannot be served or, if it has expired, its sandbox cannot be deleted."""

    error: ClaimError
    has_expired: bool = False


Decision = NoOp | Expire | DeleteClaim | DeleteSandboxes | Sync | Adopt | RequestWarm | CreateCold | Reject


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
        return _delete_sandboxes(observed) if phase is Phase.RETAIN else _serve(observed)
    except ClaimError as error:
        return Reject(error, has_expired=phase is Phase.RETAIN)


def _delete_sandboxes(observed: Observed) -> DeleteSandboxes:
    sandboxes = expiry.sandboxes_to_delete(observed.claim, observed.owned, observed.named)
    deletes = tuple(Delete(SANDBOX, sandbox.name, sandbox.uid) for sandbox in sandboxes if not sandbox.deleting)
    return DeleteSandboxes(deletes, sandboxes[0] if sandboxes else None)


def _serve(observed: Observed) -> Decision:
    claim = observed.claim
    provisioning.check_metadata(claim.additional_labels, claim.additional_annotations, observed.label_domains)
    binds_late = observed.binds_late
    found = ownership.resolve(claim, observed.owned, observed.named, observed.abandoned, binds_late=binds_late)
    if found.sandbox is not None and found.source is Source.BOUND:
        return _sync(observed, found.sandbox)
    if observed.claim_limit is not None:
        raise errors.claim_limit_reached(claim.namespace, observed.claim_limit)
    if found.sandbox is not None:
        return plan_adoption(observed, found.sandbox)
    if observed.pool is None:
        raise errors.pool_not_found(claim.warm_pool)
    if found.source is Source.COLD:
        return plan_creation(observed, is_reference_stale=found.is_reference_stale)
    if observed.revision is not None:
        # Detect a metadata conflict before a sandbox is leased.
        adoption.pod_metadata(claim, observed.revision.spec["podTemplate"].get("metadata") or {}, "")
    if binds_late:
        _check_policy(observed)  # the same with what the template's policy refuses
    requests = requests_of(claim, observed.pool, observed.revision)
    if not requests:
        return plan_creation(observed, is_reference_stale=found.is_reference_stale)
    return RequestWarm(requests, _grace(claim, observed.now), found.is_reference_stale)


def _sync(observed: Observed, sandbox: SandboxView) -> Sync:
    claim = observed.claim
    others = duplicates(claim, observed.owned, sandbox)
    try:
        if observed.revision is None and (claim.additional_labels or claim.additional_annotations):
            _template(observed)
        body = adoption.sync_patch(claim, sandbox, observed.revision)
    except ClaimError as error:
        return Sync(sandbox, None, error, others)
    return Sync(sandbox, None if body is None else Patch(SANDBOX, sandbox.name, body), duplicates=others)


def _grace(claim: ClaimView, now: datetime) -> float:
    if claim.creation_timestamp is None:
        return 0.0
    return max(0.0, (claim.creation_timestamp + WARM_GRACE - now).total_seconds())


def plan_adoption(observed: Observed, sandbox: SandboxView) -> Adopt | Reject:
    """Plan the adoption of the claim's lease, or of a sandbox that was assigned to the claim earlier."""
    claim = observed.claim
    try:
        body = adoption.adoption_patch(
            claim, sandbox, observed.revision, trace_context(observed), binds_late=observed.binds_late
        )
    except ClaimError as error:
        return Reject(error)
    pool = claim.warm_pool if sandbox.owner is None else sandbox.owner.name
    sample = metrics.creation(claim, sandbox, "", labels.LAUNCH_WARM, pool)
    return Adopt(sandbox, Patch(SANDBOX, sandbox.name, body), sandbox_adopted(sandbox.name), sample)


def plan_creation(observed: Observed, *, is_reference_stale: bool = False) -> CreateCold | Reject:
    claim = observed.claim
    try:
        template, revision = _template(observed)
        body = provisioning.sandbox_for(claim, template, revision, trace_context(observed))
    except ClaimError as error:
        return Reject(error)
    sample = metrics.creation(claim, None, template.name, labels.LAUNCH_COLD, claim.warm_pool)
    return CreateCold(Create(SANDBOX, body), sandbox_provisioned(claim.name), sample, is_reference_stale)


def handover_refusal(observed: Observed, sandbox: SandboxView) -> str:
    """The reason why the claim's variables may not be handed to the sandbox that it has; empty if they may.

    Claim and template may have changed since the sandbox was adopted. Without a template nothing allows variables.
    """
    claim = observed.claim
    if not claim.env:
        return ""
    try:
        template = _check_policy(observed)
    except ClaimError as error:
        return error.message
    adopted_from = sandbox.annotations.get(labels.TEMPLATE_REF)
    if adopted_from != template.name:
        return f'the template "{adopted_from}" of the sandbox is gone'
    return late_binding.obstacle(claim, template)


def _check_policy(observed: Observed) -> TemplateView:
    """Return the template. Raises ``ClaimError`` if there is none, or if its policy refuses the claim's variables."""
    template, revision = _template(observed)
    pod_spec = revision.spec["podTemplate"]["spec"]
    provisioning.inject_env(pod_spec, observed.claim.env, template.env_vars_injection_policy)
    return template


def _template(observed: Observed) -> tuple[TemplateView, TemplateRevision]:
    if observed.pool is None:
        raise errors.pool_not_found(observed.claim.warm_pool)
    if observed.template is None or observed.revision is None:
        raise errors.template_not_found(observed.pool.template)
    return observed.template, observed.revision


def trace_context(observed: Observed) -> str:
    return observed.claim.annotations.get(labels.TRACE_CONTEXT) or observed.trace_context
