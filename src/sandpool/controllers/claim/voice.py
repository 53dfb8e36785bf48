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
from sandpool.controllers.caches import Caches, key_of
from sandpool.controllers.claim.decisions import Observed
from sandpool.controllers.claim.latency import Sample
from sandpool.controllers.claim.noting import Noting
from sandpool.controllers.claim.problems import Problem
from sandpool.controllers.claim.settling import conclude, settle
from sandpool.controllers.perform import Performer
from sandpool.engine.cache.store import Key
from sandpool.engine.controller import DONE, Result
from sandpool.engine.events import EventRecorder, ObjectReference
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.engine.ratelimit import Backoff
from sandpool.kube.errors import Conflict, NotFound

_AGAIN: Final = Result(0.0)


class _Gift(NamedTuple):
    claim_uid: str
    sandbox: str
    sample: Sample
    happening: Happening


class Voice:
    def __init__(
        self,
        caches: Caches,
        performer: Performer,
        recorder: EventRecorder,
        metrics: MetricsRegistry,
        noting: Noting,
        random: Random,
    ) -> None:
        self.caches = caches
        self.performer = performer
        self.recorder = recorder
        self.metrics = metrics
        self.noting = noting
        # Of claims with a problem that is tried again later and later; it is no failure of the pass.
        self._pauses: Backoff[Key] = Backoff(random)
        # What claims are being given, by claim, until it is known that they have it. Usually that is at once; but the
        # answer may be lost, and then a later pass finds out.
        self._gifts: dict[Key, _Gift] = {}

    async def settle(
        self,
        observed: Observed,
        sandbox: SandboxView | None,
        problem: Problem | None = None,
        *,
        expired: bool = False,
        is_reference_stale: bool = False,
    ) -> Result:
        """The end of a pass; see ``settling`` for what the arguments mean."""
        claim, key = observed.claim, key_of(observed.claim)
        settled = settle(observed, sandbox, problem, expired=expired)
        if settled.patch is not None:
            try:
                await self.performer.patch(settled.patch, claim.namespace)
            except NotFound:
                return DONE  # the claim is gone; its sandbox goes with it
            except Conflict:
                return await self._look_again(claim)
        if settled.event is not None:
            self.tell(claim, settled.event)
        name = sandbox.name if sandbox is not None else ""
        pending = self.noting.pending(key, claim.uid)
        if pending != name:  # nothing is to be written, or what is, is about a sandbox that was lost since
            conclusion = conclude(observed, settled.status, sandbox, is_reference_stale=is_reference_stale)
            for sample in conclusion.samples if pending is None else ():
                self.measure(sample)
            if conclusion.patch is not None:
                self.noting.put(key, claim.uid, name, conclusion.patch)
        if settled.is_failure:
            pause = self._pauses.next_delay(key)
            return Result(pause if settled.requeue_after is None else min(pause, settled.requeue_after))
        self._pauses.forget(key)
        return Result(settled.requeue_after)

    async def _look_again(self, claim: ClaimView) -> Result:
        """Somebody has written the claim since we looked, perhaps something that would not have woken us."""
        try:
            self.caches.claims.record_write(await self.performer.client.get(SANDBOX_CLAIM, claim.name, claim.namespace))
        except NotFound:
            return DONE
        return _AGAIN

    def is_giving(self, claim: ClaimView, sandbox: str, sample: Sample, happening: Happening) -> None:
        """The claim is about to be given a sandbox. If it then has it, that is told and counted, once."""
        self._gifts[key_of(claim)] = _Gift(claim.uid, sandbox, sample, happening)

    def gave(self, claim: ClaimView, sandbox: str) -> None:
        """The claim has a sandbox. Nothing happens if that is no news."""
        gift = self._gifts.get(key_of(claim))
        if gift is None or (gift.claim_uid, gift.sandbox) != (claim.uid, sandbox):
            return
        del self._gifts[key_of(claim)]
        self.measure(gift.sample)
        self.tell(claim, gift.happening)

    def tell(self, claim: ClaimView, happening: Happening) -> None:
        type = SANDBOX_CLAIM
        self.recorder.event(
            ObjectReference(
                type.api_version, type.kind, claim.name, claim.namespace, claim.uid, claim.resource_version
            ),
            happening,
        )

    def measure(self, sample: Sample) -> None:
        if sample.metric.kind == "counter":
            self.metrics.counter(sample.metric).add(*sample.labels, amount=sample.value)
        else:
            self.metrics.histogram(sample.metric).observe(sample.value, *sample.labels)

    def forget(self, claim: Key) -> None:
        """The claim is gone."""
        self._pauses.forget(claim)
        self._gifts.pop(claim, None)
