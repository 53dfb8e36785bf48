"""Gives every claim its sandbox: looks at one when something it depends on has changed, and does what is decided.

**Order.** Claims are looked at in the order in which they came, and a pass asks the assigner before it waits for
anything, so the first claim gets the first sandbox. Who finds none waits in the assigner's line and is woken by it.

**The path.** Two writes make a warm claim ready: its sandbox, then its status. What is noted on the claim afterwards is
written by others (``_notes``), few at a time, so that in a burst nobody's notes stand in the way of somebody's sandbox.

**Every failure ends well.** The owner of the Sandbox is the record; whatever goes wrong, the claim's next pass finds
the sandbox by that. If a sandbox was taken and it is not known whether it was written, the lease stays with the claim,
who tries again with the same sandbox and no other; if the API has refused, the sandbox is looked at and is the claim's,
or is adopted again as it is, or is lost and forgotten. It is given back if the claim turns out not to need it.
"""

from __future__ import annotations

from random import Random
from typing import Final

from sandpool.api.events import Happening
from sandpool.api.kinds import SANDBOX_CLAIM, SANDBOX_WARM_POOL
from sandpool.api.views import ClaimView, SandboxView, TemplateView, WarmPoolView
from sandpool.controllers.blueprints import Blueprints
from sandpool.controllers.caches import Caches, key_of
from sandpool.controllers.claim import problems, triggers
from sandpool.controllers.claim.assigner import Assigner, Lease
from sandpool.controllers.claim.binding import Binder
from sandpool.controllers.claim.candidates import offer_of
from sandpool.controllers.claim.decisions import (
    Adopt,
    Ask,
    Expire,
    Keep,
    Make,
    Observed,
    Refuse,
    Release,
    Remove,
    Rest,
)
from sandpool.controllers.claim.first_seen import FirstSeen
from sandpool.controllers.claim.latency import Sample
from sandpool.controllers.claim.lookup import names_to_find
from sandpool.controllers.claim.plan import adopt, decide, make
from sandpool.controllers.claim.problems import Problem, Retry
from sandpool.controllers.claim.settings import Settings
from sandpool.controllers.claim.settling import conclude, settle
from sandpool.controllers.perform import Performer
from sandpool.controllers.writes import Patch
from sandpool.engine.backoff import Backoff
from sandpool.engine.cache import Key
from sandpool.engine.clock import Clock
from sandpool.engine.controller import DONE, Controller, Result
from sandpool.engine.metrics import Metrics
from sandpool.engine.metrics_controller import ControllerMetrics
from sandpool.engine.metrics_queue import MeasuredQueue
from sandpool.engine.recorder import Recorder
from sandpool.engine.recorder_event import Reference
from sandpool.kube.errors import AlreadyExists, ApiError, Conflict, NotFound

_AGAIN: Final = Result(0.0)


class ClaimController:
    def __init__(
        self,
        caches: Caches,
        blueprints: Blueprints,
        performer: Performer,
        recorder: Recorder,
        metrics: Metrics,
        clock: Clock,
        random: Random,
        settings: Settings | None = None,
    ) -> None:
        self.caches = caches
        self.blueprints = blueprints
        self.performer = performer
        self.recorder = recorder
        self.metrics = metrics
        self.clock = clock
        self.settings = settings = settings or Settings()
        self.assigner = Assigner(self._wake)
        self.binder = Binder(caches, performer)
        # Namespaces take turns, so the burst of one is not in the way of the others.
        queue: MeasuredQueue[Key] = MeasuredQueue("sandboxclaim", metrics, clock, group=lambda key: key.namespace)
        self.controller: Controller[Key] = Controller(
            queue.name,
            self.reconcile,
            clock,
            random,
            workers=settings.workers,
            queue=queue,
            observer=ControllerMetrics(queue.name, settings.workers, metrics),
            retried=queue.retried,
        )
        self.notes: Controller[Key] = Controller(
            "sandboxclaim-notes", self._note, clock, random, workers=settings.note_workers
        )
        # What is to be noted on claims that are served. While a claim is here, its passes leave its metadata alone.
        self._notes: dict[Key, Patch] = {}
        self._binding: set[Key] = set()  # claims whose pass is writing a sandbox now
        self._first_seen = FirstSeen()
        # Of claims with a problem that is tried again later and later; it is no failure of the pass.
        self._pauses: Backoff[Key] = Backoff(random)
        caches.pools.subscribe(self._pool_changed, reads=triggers.read_of_pool)
        caches.templates.subscribe(self._template_changed, reads=triggers.read_of_template)
        caches.sandboxes.subscribe(self._offer_changed)
        caches.sandboxes.subscribe(self._sandbox_changed, reads=triggers.read_of_sandbox)
        caches.sandboxes.subscribe(self._owner_changed, reads=lambda sandbox: sandbox.owner)
        caches.claims.subscribe(self._claim_changed, reads=_claim_reads)

    # --- what wakes a claim ------------------------------------------------------------------------------------------

    def _wake(self, claim: tuple[str, str]) -> None:
        self.controller.enqueue(Key(*claim))

    def _claim_changed(self, key: Key, old: ClaimView | None, new: ClaimView | None) -> None:
        if old is not None and (new is None or new.uid != old.uid):
            self._notes.pop(key, None)  # they are about the old one
        if new is not None:
            self._first_seen.see(key, new.uid, self.clock.now())
        self.controller.enqueue(key)

    def _offer_changed(self, key: Key, old: SandboxView | None, new: SandboxView | None) -> None:
        if new is None:
            self.assigner.forget(key)
        else:
            self._offer(new)

    def _offer(self, sandbox: SandboxView) -> None:
        owner = sandbox.owner
        pool = None
        if owner is not None and owner.is_a(SANDBOX_WARM_POOL):
            pool = self.caches.pools.get(Key(sandbox.namespace, owner.name))
        blueprint = None if pool is None else self.blueprints.of(pool.namespace, pool.template)
        offer = offer_of(sandbox, pool, blueprint)
        if offer is None:
            self.assigner.forget(key_of(sandbox))
        else:
            self.assigner.offer(offer)

    def _sandbox_changed(self, key: Key, old: SandboxView | None, new: SandboxView | None) -> None:
        sandbox = new if new is not None else old
        if sandbox is not None and sandbox.owner is not None and sandbox.owner.is_a(SANDBOX_CLAIM):
            self.controller.enqueue(Key(key.namespace, sandbox.owner.name))

    def _owner_changed(self, key: Key, old: SandboxView | None, new: SandboxView | None) -> None:
        """Somebody else has made the sandbox a claim's; a pass that does it itself goes on from there."""
        if old is not None and new is not None and new.owner is not None and new.owner.is_a(SANDBOX_CLAIM):
            claim = Key(key.namespace, new.owner.name)
            if claim not in self._binding:
                self.controller.enqueue(claim)

    def _pool_changed(self, key: Key, old: WarmPoolView | None, new: WarmPoolView | None) -> None:
        self._offer_again(key)
        for claim in self.caches.pool_claims(key.namespace, key.name):
            if triggers.is_for_pool_news(claim):
                self.controller.enqueue(key_of(claim))

    def _template_changed(self, key: Key, old: TemplateView | None, new: TemplateView | None) -> None:
        for pool in self.caches.template_pools(key.namespace, key.name):
            self._offer_again(key_of(pool))
            for claim in self.caches.pool_claims(pool.namespace, pool.name):
                if triggers.is_for_template_news(claim, is_new=old is None):
                    self.controller.enqueue(key_of(claim))

    def _offer_again(self, pool: Key) -> None:
        """What the pool has may be worth something else now."""
        for sandbox in self.caches.pool_sandboxes(pool.namespace, pool.name):
            self._offer(sandbox)

    # --- one pass ----------------------------------------------------------------------------------------------------

    async def reconcile(self, key: Key) -> Result:
        claim = self.caches.claims.get(key)
        if claim is None:
            self.assigner.withdraw(key)
            self._pauses.forget(key)
            self._first_seen.forget(key)
            return DONE
        observed = self._observe(claim)
        decision = decide(observed)
        match decision:
            case Ask():
                return await self._ask(observed, decision)
            case Adopt():
                return await self._adopt(observed, decision, None)
            case Make():
                return await self._make(observed, decision)
        self.assigner.withdraw(key)
        match decision:
            case Rest():
                return DONE
            case Expire():
                return await self._settle(observed, None, expired=True)
            case Remove():
                policy = "Foreground" if decision.foreground else "Background"
                self._tell(claim, decision.event)
                await self.performer.delete(decision.delete, claim.namespace, propagation_policy=policy)
                return DONE
            case Release():
                for delete in decision.deletes:
                    await self.performer.delete(delete, claim.namespace)
                return await self._settle(observed, decision.sandbox, expired=True)
            case Keep():
                return await self._keep(observed, decision)
            case Refuse():
                return await self._settle(observed, None, decision.problem)

    def _observe(self, claim: ClaimView) -> Observed:
        namespace = claim.namespace
        named = {name: self.caches.sandboxes.get(Key(namespace, name)) for name in names_to_find(claim)}
        pool = self.caches.pools.get(Key(namespace, claim.warm_pool))
        template = None if pool is None else self.caches.templates.get(Key(namespace, pool.template))
        return Observed(
            claim=claim,
            owned=self.caches.owned_sandboxes(claim.uid),
            named={name: sandbox for name, sandbox in named.items() if sandbox is not None},
            pool=pool,
            template=template,
            blueprint=None if template is None else self.blueprints.of(namespace, template.name),
            now=self.clock.now(),
            first_observed=self._first_seen.get(key_of(claim), claim.uid),
            is_observability_noted=self.settings.note_observability,
            label_domains=self.settings.label_domains,
        )

    async def _keep(self, observed: Observed, decision: Keep) -> Result:
        sandbox = decision.sandbox
        if decision.patch is not None:
            try:
                answer = await self.performer.patch(decision.patch, sandbox.namespace)
            except NotFound:
                self.caches.sandboxes.deleted(key_of(sandbox), sandbox.uid)
                return _AGAIN
            sandbox = SandboxView.from_object(answer)
        return await self._settle(observed, sandbox, decision.problem)

    # --- a sandbox of the pool ---------------------------------------------------------------------------------------

    async def _ask(self, observed: Observed, ask: Ask) -> Result:
        lease = self._take(ask, booting=False)
        if lease is None and ask.patience > 0 and self.assigner.is_worth_waiting(ask.wishes[-1]):
            self.assigner.wait(ask.wishes[-1])
            return Result(ask.patience)
        lease = lease or self._take(ask, booting=True)
        if lease is not None:
            sandbox = self.caches.sandboxes.get(Key(*lease.sandbox))
            assert sandbox is not None, "what is gone from the cache is forgotten by the assigner"
            adoption = adopt(observed, sandbox)
            if isinstance(adoption, Adopt):
                return await self._adopt(observed, adoption, lease, is_reference_stale=ask.is_reference_stale)
            lease.give_back()
            return await self._settle(observed, None, adoption.problem)
        making = make(observed, is_reference_stale=ask.is_reference_stale)
        if isinstance(making, Make):
            return await self._make(observed, making)
        self.assigner.withdraw(key_of(observed.claim))
        return await self._settle(observed, None, making.problem)

    def _take(self, ask: Ask, *, booting: bool) -> Lease | None:
        return next((lease for wish in ask.wishes if (lease := self.assigner.take(wish, booting=booting))), None)

    async def _adopt(
        self, observed: Observed, adoption: Adopt, lease: Lease | None, *, is_reference_stale: bool = False
    ) -> Result:
        """Write the sandbox. Without an answer the failure is raised and the lease stays: see the top."""
        claim, name = observed.claim, adoption.sandbox.name
        self._binding.add(key_of(claim))
        try:
            sandbox = await self.binder.bind(observed, adoption)
        except Problem as problem:
            if self.binder.is_lost(claim, name):
                self.assigner.forget((claim.namespace, name))
            elif lease is not None and problem.retry is not Retry.BACKOFF:
                lease.give_back()  # nobody comes back for it soon
            return await self._settle(observed, None, problem, is_reference_stale=is_reference_stale)
        finally:
            self._binding.discard(key_of(claim))
        if lease is not None:
            lease.done()
        self.assigner.withdraw(key_of(claim))
        self._measure(adoption.sample)
        self._tell(claim, adoption.event)
        return await self._settle(observed, sandbox, is_reference_stale=is_reference_stale)

    # --- a sandbox of its own ----------------------------------------------------------------------------------------

    async def _make(self, observed: Observed, making: Make) -> Result:
        claim = observed.claim
        self.assigner.withdraw(key_of(claim))
        stale = making.is_reference_stale
        try:
            answer = await self.performer.create(making.create, claim.namespace)
        except AlreadyExists:
            return await self._settle(observed, None, problems.create_pending(), is_reference_stale=stale)
        except ApiError as error:
            if error.code >= 500 or error.code == 429:
                raise
            return await self._settle(observed, None, problems.failure(error.message), is_reference_stale=stale)
        self._measure(making.sample)
        self._tell(claim, making.event)
        return await self._settle(observed, SandboxView.from_object(answer), is_reference_stale=stale)

    # --- what the claim says -----------------------------------------------------------------------------------------

    async def _settle(
        self,
        observed: Observed,
        sandbox: SandboxView | None,
        problem: Problem | None = None,
        *,
        expired: bool = False,
        is_reference_stale: bool = False,
    ) -> Result:
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
            self._tell(claim, settled.event)
        if key not in self._notes:
            conclusion = conclude(observed, settled.status, sandbox, is_reference_stale=is_reference_stale)
            for sample in conclusion.samples:
                self._measure(sample)
            if conclusion.patch is not None:
                self._notes[key] = conclusion.patch
                self.notes.enqueue(key)
        if settled.is_failure:
            pause = self._pauses.pause(key)
            return Result(pause if settled.requeue_after is None else min(pause, settled.requeue_after))
        self._pauses.forget(key)
        return Result(settled.requeue_after)

    async def _look_again(self, claim: ClaimView) -> Result:
        """Somebody has written the claim since we looked, perhaps something that would not have woken us."""
        try:
            self.caches.claims.wrote(await self.performer.client.get(SANDBOX_CLAIM, claim.name, claim.namespace))
        except NotFound:
            return DONE
        return _AGAIN

    async def _note(self, key: Key) -> Result:
        patch = self._notes.get(key)
        if patch is not None:
            await self.performer.patch_if_there(patch, key.namespace)
            self._notes.pop(key, None)
            self._first_seen.forget(key)
        return DONE

    def _measure(self, sample: Sample) -> None:
        if sample.metric.kind == "counter":
            self.metrics.count(sample.metric).add(*sample.labels, amount=sample.value)
        else:
            self.metrics.distribution(sample.metric).observe(sample.value, *sample.labels)

    def _tell(self, claim: ClaimView, happening: Happening) -> None:
        self.recorder.event(_reference(claim), happening)


def _reference(claim: ClaimView) -> Reference:
    type = SANDBOX_CLAIM
    return Reference(type.api_version, type.kind, claim.name, claim.namespace, claim.uid, claim.resource_version)


def _claim_reads(claim: ClaimView) -> tuple[object, ...]:
    """The spec and what people write; not the status and the notes, which are ours."""
    return claim.uid, claim.generation, claim.deleting, claim.labels
