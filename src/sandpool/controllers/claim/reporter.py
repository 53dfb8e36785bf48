"""Says what became of a claim: in its status, in events, in its metadata and in metrics. Decides nothing of it.

The status is written for the version of the claim that was looked at. Only once the API has taken it is anything noted
or measured: whose status was refused has been overtaken, and another pass knows better.
"""

from __future__ import annotations

from random import Random
from typing import Final, NamedTuple

from sandpool.api.events import Happening
from sandpool.api.kinds import SANDBOX_CLAIM
from sandpool.api.views import ClaimView, SandboxView
from sandpool.controllers.claim.annotation_writer import AnnotationWriter
from sandpool.controllers.claim.decisions import Observed
from sandpool.controllers.claim.errors import ClaimError
from sandpool.controllers.claim.metrics import Sample
from sandpool.controllers.claim.settling import compute_status, finish
from sandpool.controllers.informers import Caches, key_of
from sandpool.controllers.writer import ApiWriter
from sandpool.engine.cache.store import Key
from sandpool.engine.controller import DONE, Result
from sandpool.engine.events import EventRecorder, ObjectReference
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.engine.ratelimit import Backoff
from sandpool.kube.errors import Conflict, NotFound

_AGAIN: Final = Result(0.0)


class PendingAdoption(NamedTuple):
    claim_uid: str
    sandbox: str
    sample: Sample
    happening: Happening


class StatusReporter:
    def __init__(
        self,
        caches: Caches,
        writer: ApiWriter,
        recorder: EventRecorder,
        metrics: MetricsRegistry,
        annotation_writer: AnnotationWriter,
        random: Random,
    ) -> None:
        self.caches = caches
        self.writer = writer
        self.recorder = recorder
        self.metrics = metrics
        self.annotation_writer = annotation_writer
        # Of claims with a problem that is tried again later and later; it is no failure of the pass.
        self._pauses: Backoff[Key] = Backoff(random)
        # What claims are being given, by claim, until it is known that they have it. Usually that is at once; but the
        # answer may be lost, and then a later pass finds out.
        self._pending_adoptions: dict[Key, PendingAdoption] = {}

    async def report(
        self,
        observed: Observed,
        sandbox: SandboxView | None,
        error: ClaimError | None = None,
        *,
        expired: bool = False,
        is_reference_stale: bool = False,
    ) -> Result:
        """The end of a pass; see ``settling`` for what the arguments mean."""
        claim, key = observed.claim, key_of(observed.claim)
        update = compute_status(observed, sandbox, error, expired=expired)
        if update.patch is not None:
            try:
                await self.writer.patch(update.patch, claim.namespace)
            except NotFound:
                return DONE  # the claim is gone; its sandbox goes with it
            except Conflict:
                return await self._look_again(claim)
        if update.event is not None:
            self.record_event(claim, update.event)
        name = sandbox.name if sandbox is not None else ""
        pending = self.annotation_writer.pending(key, claim.uid)
        if pending != name:  # nothing is to be written, or what is, is about a sandbox that was lost since
            conclusion = finish(observed, update.status, sandbox, is_reference_stale=is_reference_stale)
            for sample in conclusion.samples if pending is None else ():
                self.record_sample(sample)
            if conclusion.patch is not None:
                self.annotation_writer.put(key, claim.uid, name, conclusion.patch)
        if update.is_failure:
            pause = self._pauses.next_delay(key)
            return Result(pause if update.requeue_after is None else min(pause, update.requeue_after))
        self._pauses.forget(key)
        return Result(update.requeue_after)

    async def _look_again(self, claim: ClaimView) -> Result:
        """Somebody has written the claim since we looked, perhaps something that would not have woken us."""
        try:
            self.caches.claims.record_write(await self.writer.client.get(SANDBOX_CLAIM, claim.name, claim.namespace))
        except NotFound:
            return DONE
        return _AGAIN

    def begin_adoption(self, claim: ClaimView, sandbox: str, sample: Sample, happening: Happening) -> None:
        """The claim is about to be given a sandbox. If it then has it, that is told and counted, once."""
        self._pending_adoptions[key_of(claim)] = PendingAdoption(claim.uid, sandbox, sample, happening)

    def confirm_adoption(self, claim: ClaimView, sandbox: str) -> None:
        """The claim has a sandbox. Nothing happens if that is no news."""
        pending = self._pending_adoptions.get(key_of(claim))
        if pending is None or (pending.claim_uid, pending.sandbox) != (claim.uid, sandbox):
            return
        del self._pending_adoptions[key_of(claim)]
        self.record_sample(pending.sample)
        self.record_event(claim, pending.happening)

    def record_event(self, claim: ClaimView, happening: Happening) -> None:
        type = SANDBOX_CLAIM
        self.recorder.event(
            ObjectReference(
                type.api_version, type.kind, claim.name, claim.namespace, claim.uid, claim.resource_version
            ),
            happening,
        )

    def record_sample(self, sample: Sample) -> None:
        if sample.metric.kind == "counter":
            self.metrics.counter(sample.metric).add(*sample.labels, amount=sample.value)
        else:
            self.metrics.histogram(sample.metric).observe(sample.value, *sample.labels)

    def forget(self, claim: Key) -> None:
        """The claim is gone."""
        self._pauses.forget(claim)
        self._pending_adoptions.pop(claim, None)
