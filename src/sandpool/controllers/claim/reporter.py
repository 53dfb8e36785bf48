"""Reports the outcome of a reconcile: the claim's status, annotations, events and metrics.

**Status.** ``StatusReporter.report`` ends every reconcile. The status patch has the observed version of the claim as
precondition. On conflict it records nothing: the next reconcile has newer data.

**Annotations.** A claim carries when the controller first saw it, its trace, its assigned sandbox, and when it was
first Ready. None of that is needed to serve the claim. If a write is lost, a later reconcile finds what is missing.
When they are written depends on the API:

* The embedded API stores metadata and status in one commit, so the Ready status carries all of them.
* Behind kube-apiserver these are two requests. The controller sends ``early_annotations`` together with the adoption
  if no other claim is waiting. In a burst the ``AnnotationWriter`` writes them after the claims, few at a time, so that
  they do not delay adoptions. It also writes the time of the first Ready, which is known only after the status.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from sandpool.api import labels
from sandpool.api.events import EventSpec
from sandpool.api.kinds import SANDBOX_CLAIM
from sandpool.api.labels import LAUNCH_WARM
from sandpool.api.resource import Key, Object
from sandpool.api.views import ClaimView, SandboxView
from sandpool.controllers.claim.errors import ClaimError
from sandpool.controllers.claim.metrics import Sample, is_first_ready, startup_samples
from sandpool.controllers.claim.ownership import launch_type
from sandpool.controllers.claim.plan import Observed
from sandpool.controllers.claim.state import ClaimState, ClaimStates, PendingAdoption, PendingAnnotations
from sandpool.controllers.claim.status import ClaimStatus, compute_status
from sandpool.controllers.dependencies import Dependencies
from sandpool.controllers.informers import key_of
from sandpool.controllers.writer import Patch
from sandpool.engine.controller import DONE, Controller, Result
from sandpool.engine.events import ObjectReference
from sandpool.kube.errors import Conflict, Invalid, NotFound

_AGAIN: Final = Result(0.0)


class StatusReporter:
    def __init__(self, dependencies: Dependencies, states: ClaimStates, annotation_writer: AnnotationWriter) -> None:
        self.writer = dependencies.writer
        self.recorder = dependencies.recorder
        self.metrics = dependencies.metrics
        self.clock = dependencies.clock
        self.states = states
        self.annotation_writer = annotation_writer

    async def report(
        self,
        state: ClaimState,
        observed: Observed,
        sandbox: SandboxView | None,
        error: ClaimError | None = None,
        *,
        expired: bool = False,
        is_reference_stale: bool = False,
    ) -> Result:
        """Write the status, then record what follows from it; see ``compute_status`` for the arguments."""
        claim, key = observed.claim, key_of(observed.claim)
        update = compute_status(claim, observed.now, sandbox, error, expired=expired)
        is_annotated, version = False, claim.resource_version
        if (patch := update.patch) is not None:
            if self.writer.client.stores_metadata_with_status:
                metadata = finish(observed, update.status, sandbox, self.clock.now(), is_reference_stale)
                if metadata is not None:
                    patch, is_annotated = _with_metadata(patch, metadata), True
            try:
                answer = await self.writer.patch(patch, claim.namespace)
            except NotFound:
                return DONE  # the claim is gone, and its sandbox with it
            except Conflict:
                return await self._refresh(claim)
            version = answer["metadata"]["resourceVersion"]
        state.reported_version = version
        ready_at = self.clock.now()
        if update.event is not None:
            self.record_event(claim, update.event)
        name = sandbox.name if sandbox is not None else ""
        pending = None if state.pending_annotations is None else state.pending_annotations.sandbox
        if pending != name:  # no annotations are pending, or they name a sandbox that the claim has lost since
            if pending is None and is_first_ready(claim, update.status):
                for sample in startup_samples(claim, sandbox, ready_at, observed.first_observed):
                    self.record_sample(sample)
            if not is_annotated:
                metadata = finish(observed, update.status, sandbox, ready_at, is_reference_stale)
                if metadata is not None:
                    state.pending_annotations = PendingAnnotations(name, Patch(SANDBOX_CLAIM, claim.name, metadata))
                    self.annotation_writer.controller.enqueue(key)
        if update.is_failure:
            pause = self.states.retries.next_delay(key)
            return Result(pause if update.requeue_after is None else min(pause, update.requeue_after))
        self.states.retries.forget(key)
        return Result(update.requeue_after)

    async def _refresh(self, claim: ClaimView) -> Result:
        """Read a claim that another writer has changed. The change alone might not enqueue it."""
        try:
            self.writer.caches.claims.record_write(
                await self.writer.client.get(SANDBOX_CLAIM, claim.name, claim.namespace)
            )
        except NotFound:
            return DONE
        return _AGAIN

    def begin_adoption(self, state: ClaimState, sandbox: str, sample: Sample, event: EventSpec) -> None:
        """Remember an adoption or creation that is about to be written."""
        state.pending_adoption = PendingAdoption(sandbox, sample, event)

    def confirm_adoption(self, state: ClaimState, claim: ClaimView, sandbox: str) -> None:
        """The claim has the sandbox: record the pending adoption of it, once. The answer may have been lost before."""
        pending = state.pending_adoption
        if pending is not None and pending.sandbox == sandbox:
            state.pending_adoption = None
            self.record_sample(pending.sample)
            self.record_event(claim, pending.event)

    def record_event(self, claim: ClaimView, event: EventSpec) -> None:
        kind = SANDBOX_CLAIM
        self.recorder.event(
            ObjectReference(
                kind.api_version, kind.kind, claim.name, claim.namespace, claim.uid, claim.resource_version
            ),
            event,
        )

    def record_sample(self, sample: Sample) -> None:
        if sample.metric.kind == "counter":
            self.metrics.counter(sample.metric).add(*sample.labels, amount=sample.value)
        else:
            self.metrics.histogram(sample.metric).observe(sample.value, *sample.labels)


class AnnotationWriter:
    """Writes pending annotations in the background, with few workers.

    The UID in the patch is a precondition. The API answers with a conflict if the claim was deleted and created again,
    and then the patch is dropped. A concurrent write gives the same answer, so as long as the cache has the claim under
    that UID, the patch is retried.
    """

    def __init__(self, dependencies: Dependencies, states: ClaimStates, *, workers: int) -> None:
        self.writer = dependencies.background
        self.states = states
        self.controller: Controller[Key] = Controller(
            "sandboxclaim-annotations",
            self._write,
            dependencies.clock,
            dependencies.rng,
            workers=workers,
            middleware=dependencies.middleware,
        )

    async def _write(self, claim: Key) -> Result:
        state = self.states.get(claim)
        if state is None or (pending := state.pending_annotations) is None:
            return DONE
        try:
            with suppress(Invalid):  # the answer of some API servers to a patch for another UID
                await self.writer.patch_if_there(pending.patch, claim.namespace)
        except Conflict:
            known = self.writer.caches.claims.get(claim)
            if known is not None and known.uid == state.uid:
                raise
        if state.pending_annotations is pending:
            state.pending_annotations = None
        return DONE


def finish(
    observed: Observed,
    status: ClaimStatus,
    sandbox: SandboxView | None,
    now: datetime,
    is_reference_stale: bool = False,
) -> Object | None:
    """Body of the metadata patch that goes with a status; None if nothing is missing.

    All annotations are due when the claim is Ready. Before that only a stale reference is removed.
    """
    claim = observed.claim
    first_ready = ""
    if not claim.annotations.get(labels.CLAIM_FIRST_READY_AT):
        if claim.ready:
            first_ready = labels.FIRST_READY_UNKNOWN
        elif status.ready:
            first_ready = precise(now)
    if not (status.ready or first_ready or is_reference_stale):
        return None
    is_warm = sandbox is not None and launch_type(claim, sandbox) == LAUNCH_WARM
    return annotation_patch(
        claim,
        first_observed=observed.first_observed if observed.annotate_observability else None,
        trace_context=observed.trace_context if observed.annotate_observability else "",
        adopted=sandbox.name if sandbox is not None and is_warm else "",
        is_reference_stale=is_reference_stale,
        first_ready=first_ready,
    )


def early_annotations(observed: Observed, adopted: str) -> Patch | None:
    """Patch with the annotations that are known before a claim is Ready; ``adopted`` is empty for a created sandbox."""
    body = annotation_patch(
        observed.claim,
        first_observed=observed.first_observed if observed.annotate_observability else None,
        trace_context=observed.trace_context if observed.annotate_observability else "",
        adopted=adopted,
    )
    return None if body is None else Patch(SANDBOX_CLAIM, observed.claim.name, body)


def annotation_patch(
    claim: ClaimView,
    *,
    first_observed: datetime | None = None,
    trace_context: str = "",
    adopted: str = "",
    is_reference_stale: bool = False,
    first_ready: str = "",
) -> Object | None:
    """Body of the merge patch of a claim's metadata; None if nothing is missing.

    ``adopted`` is the sandbox that the claim got from a pool. ``is_reference_stale``: the one that the claim names is
    not available. Existing values are kept, except the sandbox's name, which also moves out of its legacy label.
    """
    annotations: dict[str, str | None] = {}
    known = claim.annotations
    if first_observed is not None and not known.get(labels.CONTROLLER_FIRST_OBSERVED_AT):
        annotations[labels.CONTROLLER_FIRST_OBSERVED_AT] = precise(first_observed)
    if trace_context and not known.get(labels.TRACE_CONTEXT):
        annotations[labels.TRACE_CONTEXT] = trace_context
    if adopted and known.get(labels.SANDBOX_NAME) != adopted:
        annotations[labels.SANDBOX_NAME] = adopted
    elif is_reference_stale and not adopted and labels.SANDBOX_NAME in known:
        annotations[labels.SANDBOX_NAME] = None
    if first_ready and not known.get(labels.CLAIM_FIRST_READY_AT):
        annotations[labels.CLAIM_FIRST_READY_AT] = first_ready
    metadata: Object = {"annotations": annotations} if annotations else {}
    if labels.SANDBOX_NAME in claim.labels and (adopted or is_reference_stale):
        metadata["labels"] = {labels.SANDBOX_NAME: None}
    # The UID is a precondition: a claim created again under the same name has its own annotations.
    return {"metadata": {"uid": claim.uid, **metadata}} if metadata else None


def precise(moment: datetime) -> str:
    """RFC 3339 with fractions of a second, as Go's RFC3339Nano: without trailing zeros."""
    text = moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")
    return text.rstrip("0").rstrip(".") + "Z"


def _with_metadata(status: Patch, metadata: Object) -> Patch:
    body = {**status.body, "metadata": {**metadata["metadata"], **status.body["metadata"]}}
    return replace(status, body=body, with_metadata=True)
