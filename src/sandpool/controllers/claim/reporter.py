"""Reports the outcome of a reconcile: the claim's status, annotations, events and metrics.

**Status.** ``StatusReporter.report`` ends every reconcile. The status patch has the observed version of the claim as
precondition. On conflict it records nothing: the next reconcile has newer data.

**Annotations.** A claim carries when the controller first saw it, its trace, its assigned sandbox, and when it was
first Ready. None of that is needed to serve the claim. If a write is lost, a later reconcile finds what is missing.
When they are written depends on the API:

* The embedded API stores metadata and status in one commit, so the Ready status carries all of them.
* Behind kube-apiserver these are two requests. The controller sends ``early_annotations`` together with the adoption
  if no other claim is waiting. In a burst the ``AnnotationWriter`` writes them after the claims, few at a time, so that
  they do not delay adoptions.

The time of the first Ready is known only after the status. No client waits for it, so after early annotations it is
written ``first_ready_delay`` seconds later, and a claim that is deleted before then does not cost that write. The
annotation also tells other processes that the claim was measured. While the stored status is Ready, that status tells
them; so the annotation must be stored before a status that is not Ready. ``_mark_first_ready`` sees to that.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from sandpool.api import labels
from sandpool.api.events import EventSpec
from sandpool.api.kinds import SANDBOX_CLAIM
from sandpool.api.labels import CLAIM_FIRST_READY_AT, FIRST_READY_UNKNOWN, LAUNCH_WARM
from sandpool.api.resource import Key, Object, SharedObject
from sandpool.api.views import ClaimView, SandboxView
from sandpool.controllers.claim.errors import ClaimError, is_refusal
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
from sandpool.kube.errors import ApiError, Conflict, Invalid, NotFound

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
        update = compute_status(claim, observed.now, sandbox, error, expired=expired, binding=state.binding)
        is_annotated, version = False, claim.resource_version
        try:
            if (patch := update.patch) is not None:
                if self.writer.client.stores_metadata_with_status:
                    metadata = finish(
                        observed, update.status, sandbox, self.clock.now(), is_reference_stale, state.first_ready
                    )
                    if metadata is not None:
                        patch, is_annotated = _with_metadata(patch, metadata), True
                elif claim.ready and not update.status.ready and not claim.annotations.get(CLAIM_FIRST_READY_AT):
                    marked = await self._mark_first_ready(state, observed)
                    if marked is None:
                        return _AGAIN
                    observed, claim = marked, marked.claim
                    update = compute_status(claim, observed.now, sandbox, error, expired=expired, binding=state.binding)
                    if (patch := update.patch) is None:
                        return _AGAIN
                answer = await self.writer.patch(patch, claim.namespace)
                version = answer["metadata"]["resourceVersion"]
        except NotFound:
            return DONE  # the claim is gone, and its sandbox with it
        except Conflict:
            return await self._refresh(claim)
        state.reported_version = version
        ready_at = self.clock.now()
        if update.event is not None:
            self.record_event(claim, update.event)
        if state.first_ready is None and is_first_ready(claim, update.status):
            state.first_ready = ready_at
            for sample in startup_samples(claim, sandbox, ready_at, observed.first_observed):
                self.record_sample(sample)
        if not is_annotated:
            metadata = finish(observed, update.status, sandbox, ready_at, is_reference_stale, state.first_ready)
            if metadata is not None:
                name = sandbox.name if sandbox is not None else ""
                self.annotation_writer.submit(state, key, PendingAnnotations(name, metadata["metadata"]))
        if update.is_failure:
            pause = self.states.retries.next_delay(key)
            return Result(pause if update.requeue_after is None else min(pause, update.requeue_after))
        self.states.retries.forget(key)
        return Result(update.requeue_after)

    async def _mark_first_ready(self, state: ClaimState, observed: Observed) -> Observed | None:
        """Annotate a claim that is about to lose readiness, so that no process measures it again.

        Returns the claim with its new version, or None if the claim has changed and must be reconciled again.
        """
        claim = observed.claim
        first_ready = FIRST_READY_UNKNOWN if state.first_ready is None else precise(state.first_ready)
        body = annotation_patch(claim, first_ready=first_ready)
        assert body is not None, "the annotation is missing"
        try:
            answer = await self.writer.patch(Patch(SANDBOX_CLAIM, claim.name, body), claim.namespace)
        except (Conflict, NotFound):
            raise  # nothing forbids it: another writer was faster, or the claim is gone
        except ApiError as error:
            if not is_refusal(error):
                raise
            return observed  # a policy of the cluster forbids it; the status is more important
        if (pending := state.pending_annotations) is not None and pending.is_first_ready_only:
            state.pending_annotations = None
        return same_claim(observed, answer)

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
    """Writes pending annotations in the background, with few workers, and the time of the first Ready alone
    ``first_ready_delay`` seconds later.

    The UID in the patch is a precondition. The API answers with a conflict if the claim was deleted and created again,
    and then the patch is dropped. A concurrent write gives the same answer, so as long as the cache has the claim under
    that UID, the patch is retried.
    """

    def __init__(
        self, dependencies: Dependencies, states: ClaimStates, *, workers: int, first_ready_delay: float = 0.0
    ) -> None:
        self.writer = dependencies.background
        self.states = states
        self.first_ready_delay = first_ready_delay
        self.controller: Controller[Key] = Controller(
            "sandboxclaim-annotations",
            self._write,
            dependencies.clock,
            dependencies.rng,
            workers=workers,
            middleware=dependencies.middleware,
        )

    def submit(self, state: ClaimState, claim: Key, annotations: PendingAnnotations) -> None:
        """Write annotations of a claim, unless they are pending already."""
        before = state.pending_annotations
        if before is not None and before.covers(annotations):
            return
        state.pending_annotations = annotations
        if annotations.is_first_ready_only and self.first_ready_delay:
            self.controller.enqueue_after(claim, self.first_ready_delay)
        else:
            self.controller.enqueue(claim)

    async def flush(self) -> None:
        """Write all pending annotations now."""
        for claim in self.states.with_pending_annotations():
            self.controller.enqueue(claim)
        await self.controller.queue.settled()

    async def _write(self, claim: Key) -> Result:
        state = self.states.get(claim)
        if state is None or (pending := state.pending_annotations) is None:
            return DONE
        patch = Patch(SANDBOX_CLAIM, claim.name, {"metadata": pending.metadata})
        try:
            with suppress(Invalid):  # the answer of some API servers to a patch for another UID
                await self.writer.patch_if_there(patch, claim.namespace)
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
    first_ready_at: datetime | None = None,
) -> Object | None:
    """Body of the metadata patch that goes with a status; None if nothing is missing.

    All annotations are due when the claim is Ready. Before that only a stale reference is removed. ``first_ready_at``
    is when this process saw the claim become Ready for the first time.
    """
    claim = observed.claim
    first_ready = ""
    if not claim.annotations.get(CLAIM_FIRST_READY_AT):
        if first_ready_at is not None:
            first_ready = precise(first_ready_at)
        elif claim.ready:
            first_ready = FIRST_READY_UNKNOWN
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


def same_claim(observed: Observed, answer: SharedObject) -> Observed | None:
    """The claim as a write of its metadata left it; None if it has changed otherwise and must be reconciled again."""
    before, after = observed.claim, ClaimView.from_object(answer)
    is_same = after.generation == before.generation and after.deleting == before.deleting
    return replace(observed, claim=after) if is_same else None


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
    if first_ready and not known.get(CLAIM_FIRST_READY_AT):
        annotations[CLAIM_FIRST_READY_AT] = first_ready
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
