"""Gives every claim its sandbox: looks at one when something it depends on has changed, and does what is decided.

**Order.** Claims are looked at in the order in which they came, and a pass asks the assigner before it waits for
anything, so the first claim gets the first sandbox. Who finds none waits in the assigner's line and is woken by it.

**The path.** Two writes make a warm claim ready: its sandbox, then its status. What is noted on the claim afterwards is
written by ``annotation_writer``, few at a time, so that in a burst annotations do not delay adoptions.

**Every failure ends well.** The owner of the Sandbox is the record; whatever goes wrong, the claim's next pass finds
the sandbox by that. If a sandbox was taken or was to be made and it is not known whether it was written, the API is
asked before anything is decided, and the lease stays with the claim, who tries again with the same sandbox. If the API
has refused, the sandbox is looked at and is the claim's, or is adopted again as it is, or is lost and forgotten. It is
given back if the claim turns out not to need it.
"""

from __future__ import annotations

import logging
from random import Random

from sandpool.api.kinds import SANDBOX, SANDBOX_CLAIM
from sandpool.api.labels import CLAIM_FIRST_READY_AT
from sandpool.api.names import network_policy_name
from sandpool.api.views import ClaimView, SandboxView
from sandpool.controllers.claim import errors
from sandpool.controllers.claim.annotation_writer import AnnotationWriter
from sandpool.controllers.claim.assignment.assigner import Assigner, Lease
from sandpool.controllers.claim.assignment.node_health import NodeHealth
from sandpool.controllers.claim.binding import Binder
from sandpool.controllers.claim.decisions import (
    Adopt,
    CreateCold,
    DeleteClaim,
    DeleteSandboxes,
    Expire,
    NoOp,
    Observed,
    Reject,
    RequestWarm,
    Sync,
)
from sandpool.controllers.claim.errors import ClaimError, Retry, is_refusal
from sandpool.controllers.claim.keeping import Syncer
from sandpool.controllers.claim.legacy import policy_to_delete
from sandpool.controllers.claim.offering import CandidateFeed
from sandpool.controllers.claim.plan import adopt, decide, make
from sandpool.controllers.claim.references import referenced_names
from sandpool.controllers.claim.reporter import StatusReporter
from sandpool.controllers.claim.state import FirstSeen
from sandpool.controllers.claim.watches import ClaimWatches
from sandpool.controllers.informers import Caches, key_of
from sandpool.controllers.options import ClaimOptions
from sandpool.controllers.revision import TemplateRevisions
from sandpool.controllers.writer import ApiWriter, Delete, OwnerLivenessCheck, is_ambiguous
from sandpool.engine.cache.store import Key
from sandpool.engine.clock import Clock
from sandpool.engine.controller import DONE, Controller, Result
from sandpool.engine.events import EventRecorder
from sandpool.engine.metrics.controller import ControllerMetrics
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.engine.ratelimit import RECONCILES_PER_SECOND
from sandpool.engine.tracing import NoTracing, Tracing
from sandpool.engine.workqueue.metrics import QueueMetrics
from sandpool.engine.workqueue.queue import WorkQueue
from sandpool.kube.errors import AlreadyExists, ApiError

_log = logging.getLogger(__name__)


class ClaimController:
    def __init__(
        self,
        caches: Caches,
        revisions: TemplateRevisions,
        writer: ApiWriter,
        background_writer: ApiWriter,
        recorder: EventRecorder,
        metrics: MetricsRegistry,
        clock: Clock,
        random: Random,
        settings: ClaimOptions | None = None,
        *,
        tracing: Tracing | None = None,
    ) -> None:
        self.caches = caches
        self.revisions = revisions
        self.writer = writer
        self.clock = clock
        self.settings = settings = settings or ClaimOptions()
        self.tracing = tracing or NoTracing()
        self.assigner = Assigner(self._wake)
        self.binder = Binder(caches, writer)
        # Namespaces take turns, so the burst of one is not in the way of the others.
        queue_metrics: QueueMetrics[Key] = QueueMetrics("sandboxclaim", metrics, clock)
        self.controller: Controller[Key] = Controller(
            queue_metrics.name,
            self.reconcile,
            clock,
            random,
            workers=settings.workers,
            queue=WorkQueue(group=lambda key: key.namespace, observer=queue_metrics),
            observer=ControllerMetrics(queue_metrics.name, settings.workers, metrics),
            per_second=RECONCILES_PER_SECOND,
        )
        self._owner_check = OwnerLivenessCheck(SANDBOX_CLAIM, writer)
        # Claims for which a sandbox was to be written, and the API did not say whether it was; and its name.
        self._in_doubt: dict[Key, str] = {}
        self._first_seen = FirstSeen()
        self._noting = AnnotationWriter(
            background_writer, clock, random, self._first_seen.forget, workers=settings.annotation_workers
        )
        self.reporter = StatusReporter(caches, writer, recorder, metrics, self._noting, random)
        self._syncer = Syncer(caches, writer, self.reporter)
        self._binding: dict[Key, str] = {}  # claims whose pass is writing a sandbox now, and its name
        self.node_health = NodeHealth(clock, self.assigner.deprioritize, self.assigner.restore)
        CandidateFeed(caches, revisions, self.assigner, self.node_health)
        ClaimWatches(caches, self.controller.enqueue, self.controller.notice, self._binding)
        caches.claims.subscribe(self._claim_changed, on_change_of=lambda claim: claim.uid)

    @property
    def annotations(self) -> Controller[Key]:
        """Writes what is noted on claims that have been served; it is to be run beside ``controller``."""
        return self._noting.controller

    def _wake(self, claim: tuple[str, str]) -> None:
        self.controller.enqueue(Key(*claim))

    def _claim_changed(self, key: Key, old: ClaimView | None, new: ClaimView | None) -> None:
        if new is None:
            self._noting.drop(key)
        elif not new.annotations.get(CLAIM_FIRST_READY_AT):  # else nobody will ever ask how long it took
            self._first_seen.see(key, new.uid, self.clock.now())

    # --- one pass ----------------------------------------------------------------------------------------------------

    async def reconcile(self, key: Key) -> Result:
        if (doubtful := self._in_doubt.get(key)) is not None:
            await self.writer.refresh(SANDBOX, doubtful, key.namespace)
            del self._in_doubt[key]
        claim = self.caches.claims.get(key)
        if claim is None:
            self.assigner.withdraw(key)
            self.reporter.forget(key)
            self._first_seen.forget(key)
            self._owner_check.forget(key)
            return DONE
        if (leftover := self._leftover(claim)) is not None:
            await self._clean_up(leftover, claim)
        observed = self._observe(claim)
        decision = decide(observed)
        if isinstance(decision, RequestWarm | Adopt | CreateCold) and self._owner_check.was_created_for(claim):
            # It had a sandbox, which may be gone because the claim is.
            if not await self._owner_check.exists(claim) or (claim := self.caches.claims.get(key)) is None:
                return DONE
            observed = self._observe(claim)
            decision = decide(observed)
        match decision:
            case RequestWarm():
                return await self._ask(observed, decision)
            case Adopt():
                return await self._adopt(observed, decision, None)
            case CreateCold():
                return await self._make(observed, decision)
        self.assigner.withdraw(key)
        match decision:
            case NoOp():
                return DONE
            case Expire():
                return await self.reporter.report(observed, None, expired=True)
            case DeleteClaim():
                policy = "Foreground" if decision.foreground else "Background"
                self.reporter.record_event(claim, decision.event)
                await self.writer.delete(decision.delete, claim.namespace, propagation_policy=policy)
                return DONE
            case DeleteSandboxes():
                for delete in decision.deletes:
                    await self.writer.delete(delete, claim.namespace)
                return await self.reporter.report(observed, decision.sandbox, expired=True)
            case Sync():
                return await self._syncer.keep(observed, decision)
            case Reject():
                return await self.reporter.report(observed, None, decision.error, expired=decision.has_expired)

    def _observe(self, claim: ClaimView) -> Observed:
        namespace = claim.namespace
        named = {name: self.caches.sandboxes.get(Key(namespace, name)) for name in referenced_names(claim)}
        pool = self.caches.pools.get(Key(namespace, claim.warm_pool))
        template = None if pool is None else self.caches.templates.get(Key(namespace, pool.template))
        return Observed(
            claim=claim,
            owned=self.caches.owned_sandboxes(claim.uid),
            named={name: sandbox for name, sandbox in named.items() if sandbox is not None},
            pool=pool,
            template=template,
            revision=None if template is None else self.revisions.of(namespace, template.name),
            now=self.clock.now(),
            first_observed=self._first_seen.get(key_of(claim), claim.uid),
            annotate_observability=self.settings.annotate_observability,
            label_domains=self.settings.label_domains,
            trace_context=self.tracing.context(),
        )

    def _leftover(self, claim: ClaimView) -> Delete | None:
        policy = Key(claim.namespace, network_policy_name(claim.name))
        return policy_to_delete(claim, self.caches.network_policies.get(policy))

    async def _clean_up(self, leftover: Delete, claim: ClaimView) -> None:
        try:
            await self.writer.delete(leftover, claim.namespace)
        except (ApiError, ConnectionError, TimeoutError) as api_error:
            _log.warning("%s of claim %s could not be deleted: %s", leftover.name, key_of(claim), api_error)

    # --- a sandbox of the pool ---------------------------------------------------------------------------------------

    async def _ask(self, observed: Observed, ask: RequestWarm) -> Result:
        self.node_health.expire_records()
        lease = self.assigner.take(*ask.requests)
        if lease is None and ask.grace > 0 and self.assigner.is_worth_waiting(ask.requests[-1]):
            self.assigner.wait(ask.requests[-1])
            return Result(ask.grace)
        lease = lease or self.assigner.take(*ask.requests, starting=True)
        if lease is not None:
            sandbox = self.caches.sandboxes.get(Key(*lease.sandbox))
            assert sandbox is not None, "what is gone from the cache is forgotten by the assigner"
            adoption = adopt(observed, sandbox)
            if isinstance(adoption, Adopt):
                return await self._adopt(observed, adoption, lease, is_reference_stale=ask.is_reference_stale)
            lease.give_back()
            return await self.reporter.report(observed, None, adoption.error)
        making = make(observed, is_reference_stale=ask.is_reference_stale)
        if isinstance(making, CreateCold):
            return await self._make(observed, making)
        self.assigner.withdraw(key_of(observed.claim))
        return await self.reporter.report(observed, None, making.error)

    async def _adopt(
        self, observed: Observed, adoption: Adopt, lease: Lease | None, *, is_reference_stale: bool = False
    ) -> Result:
        """Write the sandbox. Without an answer the failure is raised and the lease stays: see the top."""
        claim, name = observed.claim, adoption.sandbox.name
        self._owner_check.record_creation(claim)
        self.reporter.begin_adoption(claim, name, adoption.sample, adoption.event)
        self._binding[key_of(claim)] = name
        try:
            sandbox = await self.binder.bind(observed, adoption)
        except ClaimError as error:
            if self.binder.is_lost(claim, name):
                self.assigner.forget((claim.namespace, name))
            elif lease is not None and error.retry is not Retry.BACKOFF:
                lease.give_back()  # nobody comes back for it soon
            return await self.reporter.report(observed, None, error, is_reference_stale=is_reference_stale)
        except (ApiError, ConnectionError, TimeoutError) as api_error:
            if is_ambiguous(api_error):
                self._in_doubt[key_of(claim)] = name
            raise
        finally:
            del self._binding[key_of(claim)]
        if lease is not None:
            lease.done()
        self.assigner.withdraw(key_of(claim))
        self.reporter.confirm_adoption(claim, name)
        return await self.reporter.report(observed, sandbox, is_reference_stale=is_reference_stale)

    # --- a sandbox of its own ----------------------------------------------------------------------------------------

    async def _make(self, observed: Observed, making: CreateCold) -> Result:
        claim = observed.claim
        self.assigner.withdraw(key_of(claim))
        stale = making.is_reference_stale
        self._owner_check.record_creation(claim)
        self.reporter.begin_adoption(claim, claim.name, making.sample, making.event)
        try:
            answer = await self.writer.create(making.create, claim.namespace)
        except AlreadyExists:
            return await self.reporter.report(observed, None, errors.create_pending(), is_reference_stale=stale)
        except (ApiError, ConnectionError, TimeoutError) as api_error:
            if isinstance(api_error, ApiError) and is_refusal(api_error):
                error = errors.failure(api_error.message)
                return await self.reporter.report(observed, None, error, is_reference_stale=stale)
            if is_ambiguous(api_error):
                self._in_doubt[key_of(claim)] = claim.name
            raise
        self.reporter.confirm_adoption(claim, claim.name)
        return await self.reporter.report(observed, SandboxView.from_object(answer), is_reference_stale=stale)
