"""The claim controller: gives every SandboxClaim one sandbox, adopted from its pool or created for it.

**Reconcile.** ``reconcile`` observes the claim in the caches, ``plan.decide`` makes one decision, a method of this
class performs it, and ``StatusReporter.report`` writes the status and what follows from it.

**Order.** Claims are reconciled in order of arrival, and a reconcile asks the assigner before its first await. So the
first claim gets the first sandbox. A claim that gets none waits in the assigner, which enqueues it in turn.

**Cost.** Two serial writes make a warm claim Ready: the adoption of the sandbox, then the claim's status. See
``reporter`` for when annotations are written. Variables of a claim are handed to its warm sandbox between the two, see
``late_binding``.

**Failures.** The owner of the Sandbox is the record. Whatever fails, the next reconcile finds the claim's sandbox by
its owner. If the API did not answer an adoption or creation, the next reconcile reads that sandbox from the API before
it decides, and the lease stays with the claim, which retries the same sandbox. If the API refused the adoption, the
sandbox is read again: it is the claim's, or it is adopted as it is now, or it is lost and the assigner forgets it. A
claim that no longer needs its lease returns it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from sandpool.api import labels
from sandpool.api.claim_policies import policy_advice
from sandpool.api.conditions import (
    BINDING_FORBIDDEN,
    BINDING_NOT_POSSIBLE,
    BINDING_REFUSED,
    BINDING_TIMED_OUT,
    BINDING_UNAVAILABLE,
    CLAIM_LIMIT_REACHED,
    READY,
)
from sandpool.api.events import claim_limit_reached, claim_refused, duplicates_deleted, late_binding_failed
from sandpool.api.kinds import NETWORK_POLICY, SANDBOX, SANDBOX_CLAIM
from sandpool.api.labels import CLAIM_FIRST_READY_AT
from sandpool.api.names import network_policy_name
from sandpool.api.resource import Key, Object
from sandpool.api.views import ClaimView, NetworkPolicyView, PodView, SandboxView, TemplateView, WarmPoolView
from sandpool.controllers.claim import errors, late_binding
from sandpool.controllers.claim.adoption import adopt_sandbox, is_lost
from sandpool.controllers.claim.assignment.assigner import Assigner, Lease
from sandpool.controllers.claim.assignment.node_health import NodeHealth
from sandpool.controllers.claim.defaults import with_defaults
from sandpool.controllers.claim.errors import ClaimError, Retry, is_refusal
from sandpool.controllers.claim.late_binding import AvoidedRevisions, BindingOutcome
from sandpool.controllers.claim.ownership import duplicate_deletions, primary_sandbox, referenced_names
from sandpool.controllers.claim.plan import (
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
    decide,
    handover_refusal,
    plan_adoption,
    plan_creation,
    trace_context,
)
from sandpool.controllers.claim.reporter import AnnotationWriter, StatusReporter, early_annotations, same_claim
from sandpool.controllers.claim.state import ClaimState, ClaimStates
from sandpool.controllers.claim.watches import watch_candidates, watch_claims, wrong_reference
from sandpool.controllers.dependencies import Dependencies
from sandpool.controllers.informers import key_of
from sandpool.controllers.options import ClaimOptions
from sandpool.controllers.own_writes import OwnWriteFilter
from sandpool.controllers.quota import ClaimQuota
from sandpool.controllers.writer import Delete, OwnerLivenessCheck, Patch, is_ambiguous
from sandpool.engine.clock import within
from sandpool.engine.controller import DONE, Controller, Result
from sandpool.engine.metrics.controller import ControllerMetrics
from sandpool.engine.ratelimit import RECONCILES_PER_SECOND, Backoff
from sandpool.engine.workqueue.metrics import QueueMetrics
from sandpool.engine.workqueue.queue import WorkQueue
from sandpool.kube.errors import AlreadyExists, ApiError, Conflict, NotFound
from sandpool.kube.late_binding import BindingForbidden, BindingRefused, BindingUnavailable, BindRequest

_log = logging.getLogger(__name__)
_AGAIN: Final = Result(0.0)
# A ready sandbox without a readiness probe may take no variables for this long.
_UNAVAILABLE_SECONDS: Final = 1.0
# A claim that has its sandbox waits at most this long for its annotations before its status is written.
_ANNOTATION_SECONDS: Final = 0.5


class ClaimController:
    """Run ``controller`` and, beside it, ``annotations``."""

    def __init__(self, dependencies: Dependencies, options: ClaimOptions | None = None) -> None:
        given, clock = dependencies, dependencies.clock
        self.options = options = options or ClaimOptions()
        self.caches = given.caches
        self.revisions = given.revisions
        self.writer = given.writer
        self.clock = clock
        self.tracing = given.tracing
        self.binder = given.binder
        self.avoided = AvoidedRevisions(clock)
        # Namespaces take turns, so that a burst in one does not delay the others.
        queue_metrics: QueueMetrics[Key] = QueueMetrics("sandboxclaim", given.metrics, clock)
        self._own_writes = OwnWriteFilter(self._enqueue, self._has_work)
        self.controller: Controller[Key] = Controller(
            queue_metrics.name,
            self.reconcile,
            clock,
            given.rng,
            workers=options.workers,
            queue=WorkQueue(group=lambda key: key.namespace, observer=queue_metrics),
            observer=ControllerMetrics(queue_metrics.name, options.workers, given.metrics),
            per_second=RECONCILES_PER_SECOND,
            middleware=(*given.middleware, self._own_writes.middleware),
        )
        self._rng = given.rng
        self.states = ClaimStates(given.rng)
        self.assigner = Assigner(self.controller.enqueue)
        self.node_health = NodeHealth(clock, self.assigner.deprioritize, self.assigner.restore)
        self._owners = OwnerLivenessCheck(SANDBOX_CLAIM, given.writer)
        annotation_writer = AnnotationWriter(
            given,
            self.states,
            workers=options.annotation_workers,
            first_ready_delay=options.first_ready_delay,
        )
        self.annotations = annotation_writer.controller
        self.flush_annotations = annotation_writer.flush
        self._annotating: set[asyncio.Task[Observed | None]] = set()  # the loop itself only holds weak references
        self.reporter = StatusReporter(given, self.states, annotation_writer)
        watch_candidates(given.caches, given.revisions, self.assigner, self.node_health)
        self.quota = ClaimQuota(given.caches, given.limits, self.controller.enqueue)
        self.quota.subscribe()
        watch_claims(given.caches, self.states, clock, self.controller.enqueue, self._own_writes)

    def _enqueue(self, key: Key) -> None:
        self.controller.enqueue(key)

    def _has_work(self, key: Key) -> bool:
        """Whether the claim has changed since the last reconcile reported its status, or owns another sandbox."""
        claim, state = self.caches.claims.get(key), self.states.get(key)
        if claim is None:
            return False  # its deletion has enqueued it
        if state is None or state.reported_version != claim.resource_version or wrong_reference(claim):
            return True
        owned = self.caches.owned_sandboxes(claim.uid)
        return len(owned) > 1 or (len(owned) == 1 and owned[0].name != claim.sandbox_name)

    # --- the reconcile -----------------------------------------------------------------------------------------------

    async def reconcile(self, key: Key) -> Result:
        state = self.states.get(key)
        if state is not None and state.unconfirmed:
            await self.writer.refresh(SANDBOX, state.unconfirmed, key.namespace)
            state.unconfirmed = ""
        claim = self.caches.claims.get(key)
        if claim is None:
            self.assigner.withdraw(key)
            self.states.forget(key)
            return DONE
        state = self.states.of(claim)
        await self._delete_legacy_policy(claim)
        observed = self._observe(claim, state)
        decision = decide(observed)
        if isinstance(decision, RequestWarm | Adopt | CreateCold) and state.had_sandbox:
            # Its sandbox is gone. Perhaps the garbage collector deleted it because the claim is gone, too.
            if not await self._owners.exists(claim) or (claim := self.caches.claims.get(key)) is None:
                return DONE
            observed = self._observe(claim, state)
            decision = decide(observed)
        if isinstance(decision, RequestWarm | Adopt | CreateCold):
            self.quota.admit(claim)
        match decision:
            case RequestWarm():
                return await self._request_warm(state, observed, decision)
            case Adopt():
                return await self._adopt(state, observed, decision, None)
            case CreateCold():
                return await self._create_cold(state, observed, decision)
        self.assigner.withdraw(key)
        if not isinstance(decision, Sync | Reject):
            self.quota.leave(claim)
        match decision:
            case NoOp():
                return DONE
            case Sync():
                return await self._sync(state, observed, decision)
            case Reject():
                return await self._reject(state, observed, decision)
            case Expire():
                return await self.reporter.report(state, observed, None, expired=True)
            case DeleteClaim():
                policy = "Foreground" if decision.foreground else "Background"
                self.reporter.record_event(claim, decision.event)
                await self.writer.delete(decision.delete, claim.namespace, propagation_policy=policy)
                return DONE
            case DeleteSandboxes():
                for delete in decision.deletes:
                    await self.writer.delete(delete, claim.namespace)
                return await self.reporter.report(state, observed, decision.sandbox, expired=True)

    async def _reject(self, state: ClaimState, observed: Observed, decision: Reject) -> Result:
        claim, error = observed.claim, decision.error
        if error.reason == CLAIM_LIMIT_REACHED:
            self.quota.wait(claim)
            if claim.reason(READY) != CLAIM_LIMIT_REACHED:
                self.reporter.record_event(claim, claim_limit_reached(error.message))
        else:
            self.quota.leave(claim)
            self._record_refusal(observed, error)
        return await self.reporter.report(state, observed, None, error, expired=decision.has_expired)

    def _record_refusal(self, observed: Observed, error: ClaimError) -> None:
        """Name the field of the template that refuses the claim, once per message."""
        claim, template = observed.claim, observed.template
        ready = claim.condition(READY)
        if template is None or (ready is not None and ready["message"] == error.message):
            return
        if advice := policy_advice(claim, template):
            self.reporter.record_event(claim, claim_refused(error.reason, error.message, advice))

    def _observe(self, claim: ClaimView, state: ClaimState) -> Observed:
        namespace = claim.namespace
        named = {name: self.caches.sandboxes.get(Key(namespace, name)) for name in referenced_names(claim)}
        pool = self.caches.pools.get(Key(namespace, claim.warm_pool))
        owned = self.caches.owned_sandboxes(claim.uid)
        template = self._template(claim, pool, owned)
        return Observed(
            claim=with_defaults(claim, pool, template, had_sandbox=state.had_sandbox or bool(owned)),
            owned=owned,
            named={name: sandbox for name, sandbox in named.items() if sandbox is not None},
            pool=pool,
            template=template,
            revision=None if template is None else self.revisions.of(namespace, template.name),
            now=self.clock.now(),
            first_observed=state.first_observed,
            annotate_observability=self.options.annotate_observability,
            label_domains=self.options.label_domains,
            trace_context=self.tracing.context(),
            abandoned=state.abandoned,
            binding_obstacle="" if not claim.env else self._binding_obstacle(claim, state, template),
            claim_limit=self.quota.refusal(claim),
        )

    def _template(
        self, claim: ClaimView, pool: WarmPoolView | None, owned: Sequence[SandboxView]
    ) -> TemplateView | None:
        """The template that the claim is served from. A sandbox that it has keeps its own, whatever pool the claim
        names later: otherwise a claim could choose the network and the policies of a sandbox that runs. Only a sandbox
        of a template that is gone, and whose NetworkPolicy with it, gets that of the pool."""
        if owned:
            ref_hash = primary_sandbox(claim, owned).labels.get(labels.TEMPLATE_REF_HASH, "")
            made_from = self.caches.templates_hashed(claim.namespace, ref_hash)
            if made_from:
                return next((each for each in made_from if pool and each.name == pool.template), made_from[0])
        return None if pool is None else self.caches.templates.get(Key(claim.namespace, pool.template))

    def _binding_obstacle(self, claim: ClaimView, state: ClaimState, template: TemplateView | None) -> str:
        if self.binder is None:
            return "this controller cannot connect to sandboxes"
        if state.binding is not None and not state.binding.is_bound:
            return state.binding.message
        if failure := late_binding.failure_of(claim):
            return failure
        revision = None if template is None else self.revisions.of(template.namespace, template.name)
        return "" if template is None or revision is None else self.avoided.why(key_of(template), revision.hash)

    async def _delete_legacy_policy(self, claim: ClaimView) -> None:
        """Delete the NetworkPolicy that earlier controllers created per claim. Templates have them now.

        The cache has the policies of templates anyway, so a claim without one costs no request.
        """
        found = self.caches.network_policies.get(Key(claim.namespace, network_policy_name(claim.name)))
        if (delete := legacy_policy_deletion(claim, found)) is None:
            return
        try:
            await self.writer.delete(delete, claim.namespace)
        except (ApiError, ConnectionError, TimeoutError) as error:
            _log.warning("cannot delete NetworkPolicy %s of claim %s: %s", delete.name, key_of(claim), error)

    # --- a sandbox of the pool ---------------------------------------------------------------------------------------

    async def _request_warm(self, state: ClaimState, observed: Observed, wanted: RequestWarm) -> Result:
        self.node_health.expire_records()
        lease = self.assigner.take(*wanted.requests)
        if lease is None and wanted.grace > 0 and self.assigner.is_worth_waiting(wanted.requests[-1]):
            self.assigner.wait(wanted.requests[-1])
            return Result(wanted.grace)
        lease = lease or self.assigner.take(*wanted.requests, starting=True)
        stale = wanted.is_reference_stale
        if lease is not None:
            sandbox = self.caches.sandboxes.get(lease.sandbox)
            assert sandbox is not None, "the assigner forgets a sandbox that leaves the cache"
            adoption = plan_adoption(observed, sandbox)
            if isinstance(adoption, Adopt):
                return await self._adopt(state, observed, adoption, lease, is_reference_stale=stale)
            lease.give_back()
            return await self._reject(state, observed, adoption)
        creation = plan_creation(observed, is_reference_stale=stale)
        if isinstance(creation, CreateCold):
            return await self._create_cold(state, observed, creation)
        self.assigner.withdraw(key_of(observed.claim))
        return await self._reject(state, observed, creation)

    async def _adopt(
        self,
        state: ClaimState,
        observed: Observed,
        adoption: Adopt,
        lease: Lease | None,
        *,
        is_reference_stale: bool = False,
    ) -> Result:
        """Write the adoption. If the API does not answer, the failure is raised and the lease stays."""
        claim, name = observed.claim, adoption.sandbox.name
        annotating = self._annotate_early(state, observed, name)
        state.had_sandbox = True
        self.reporter.begin_adoption(state, name, adoption.sample, adoption.event)
        try:
            sandbox = await adopt_sandbox(
                self.writer, observed, adoption.sandbox, adoption.patch, trace_context(observed)
            )
        except ClaimError as error:
            state.abandoned = name
            if is_lost(self.caches, claim, name):
                self.assigner.forget(Key(claim.namespace, name))
            elif lease is not None and error.retry is not Retry.BACKOFF:
                lease.give_back()  # the claim does not retry soon
            return await self.reporter.report(state, observed, None, error, is_reference_stale=is_reference_stale)
        except (ApiError, ConnectionError, TimeoutError) as error:
            if is_ambiguous(error):
                state.unconfirmed = name
            raise
        state.abandoned = ""
        if lease is not None:
            lease.done()
        self.assigner.withdraw(key_of(claim))
        self.reporter.confirm_adoption(state, claim, name)
        failure = await self._bind(state, observed, sandbox)
        latest = await self._annotated(observed, annotating)
        if latest is None:
            return _AGAIN
        if failure is not None:
            return await self._unbound(state, latest, sandbox, failure)
        return await self.reporter.report(state, latest, sandbox, is_reference_stale=is_reference_stale)

    def _annotate_early(
        self, state: ClaimState, observed: Observed, adopted: str
    ) -> asyncio.Task[Observed | None] | None:
        """Start to write the annotations while the sandbox is being written, so that a Ready claim has them.

        Not if the API stores them with the status, not at a retry, and not in a burst: while other claims are queued or
        reconciled, every additional request delays them. The task returns the claim with its new version, which the
        status patch is for, or None if the claim has changed and must be reconciled again.
        """
        queue = self.controller.queue
        if self.writer.client.stores_metadata_with_status or state.had_sandbox or len(queue) or queue.processing > 1:
            return None
        patch = early_annotations(observed, adopted)
        if patch is None:
            return None
        task = asyncio.create_task(self._annotate(observed, patch))
        self._annotating.add(task)
        task.add_done_callback(self._annotating.discard)
        return task

    async def _annotate(self, observed: Observed, patch: Patch) -> Observed | None:
        claim = observed.claim
        try:
            answer = await self.writer.patch(patch, claim.namespace)
        except (ApiError, ConnectionError, TimeoutError):
            return observed  # the annotation writer writes them after the status
        return same_claim(observed, answer)

    async def _annotated(self, observed: Observed, annotating: asyncio.Task[Observed | None] | None) -> Observed | None:
        """What ``_annotate`` returns, or the claim as observed if the API takes too long: Ready must not wait for it.

        The annotation writer then writes them after the status. If the API did store them, the status patch meets a
        conflict, and the next reconcile writes it.
        """
        if annotating is None:
            return observed
        if annotating.done():
            return annotating.result()

        async def finish() -> Observed | None:
            return await annotating

        try:
            return await within(self.clock, _ANNOTATION_SECONDS, finish())
        except TimeoutError:
            return observed

    # --- the variables of a claim ------------------------------------------------------------------------------------

    async def _bind(self, state: ClaimState, observed: Observed, sandbox: SandboxView) -> BindingOutcome | None:
        """Hand the claim's variables to its warm sandbox, if that has yet to be done. Returns a failure."""
        claim = observed.claim
        if (incarnation := late_binding.due(claim, sandbox, self._pod_of(sandbox), state.bound)) is None:
            return None
        if sandbox.deleting:
            return late_binding.not_possible("the sandbox is being deleted")
        if refusal := handover_refusal(observed, sandbox):
            return late_binding.not_possible(refusal)
        try:
            pod = await within(self.clock, self.options.binding_timeout, self._hand_over(claim, sandbox))
        except TimeoutError:
            seconds = f"{self.options.binding_timeout:g} s"
            return BindingOutcome(False, BINDING_TIMED_OUT, f"the sandbox did not answer within {seconds}")
        except BindingForbidden as error:
            return BindingOutcome(False, BINDING_FORBIDDEN, str(error))
        except BindingUnavailable as error:
            return BindingOutcome(False, BINDING_UNAVAILABLE, f"nothing in the sandbox takes them: {error}")
        except BindingRefused as error:
            return BindingOutcome(False, BINDING_REFUSED, f"the sandbox did not take them: {error}")
        state.bound, state.binding = incarnation._replace(pod=pod.uid), late_binding.acknowledged(claim)
        return None

    def _pod_of(self, sandbox: SandboxView) -> PodView | None:
        pod = self.caches.pods.get(Key(sandbox.namespace, sandbox.pod_name))
        # A pod of this name may be another user's.
        return None if pod is None or pod.deleting or not pod.controlled_by(sandbox) else pod

    async def _hand_over(self, claim: ClaimView, sandbox: SandboxView) -> PodView:
        """Ask until the sandbox acknowledges, and return its pod. An answer that is lost may have been an
        acknowledgement, and a sandbox that takes no variables yet may still be starting."""
        if self.binder is None:
            raise BindingUnavailable("this controller cannot connect to sandboxes")
        unavailable_until = self.clock.monotonic() + _UNAVAILABLE_SECONDS
        pauses: Backoff[None] = Backoff(self._rng, first=0.02, longest=0.5)
        while True:
            try:
                pod = self._pod_of(sandbox)
                if pod is None:
                    raise BindingUnavailable("it has no pod")
                await self.binder.bind(BindRequest(_reference(pod), claim.uid, late_binding.values(claim)))
                return pod
            except BindingForbidden:
                raise
            except BindingUnavailable:
                if self.clock.monotonic() >= unavailable_until:
                    raise
            except OSError as error:
                _log.info("claim %s: no answer to its variables: %s", key_of(claim), error)
            await self.clock.sleep(pauses.next_delay(None))

    async def _unbound(
        self, state: ClaimState, observed: Observed, sandbox: SandboxView, failure: BindingOutcome
    ) -> Result:
        """Delete a sandbox that has not acknowledged the claim's variables, so that the claim gets one of its own. Keep
        it and try again if the claim has used it."""
        claim = observed.claim
        was_used = claim.ready or state.first_ready is not None or bool(claim.annotations.get(CLAIM_FIRST_READY_AT))
        if was_used or sandbox.deleting:
            return await self.reporter.report(state, observed, sandbox, errors.environment_not_bound(failure.message))
        of_sandbox_or_claim = failure.reason in (BINDING_REFUSED, BINDING_NOT_POSSIBLE)  # not of the revision
        if observed.template is not None and observed.revision is not None and not of_sandbox_or_claim:
            self.avoided.add(key_of(observed.template), observed.revision.hash, failure.message)
        await self.writer.delete(Delete(SANDBOX, sandbox.name, sandbox.uid), claim.namespace)
        state.binding = failure
        self.reporter.record_event(claim, late_binding_failed(sandbox.name, failure.message))
        _log.warning("claim %s gets a sandbox of its own: %s", key_of(claim), failure.message)
        return _AGAIN

    # --- a sandbox of its own ----------------------------------------------------------------------------------------

    async def _create_cold(self, state: ClaimState, observed: Observed, creation: CreateCold) -> Result:
        claim, stale = observed.claim, creation.is_reference_stale
        if (state.binding is None or state.binding.is_bound) and (
            why := late_binding.why_cold(claim, observed.late_binding_obstacle)
        ):
            state.binding = late_binding.not_possible(why)
        self.assigner.withdraw(key_of(claim))
        annotating = self._annotate_early(state, observed, "")
        state.had_sandbox = True
        self.reporter.begin_adoption(state, claim.name, creation.sample, creation.event)
        try:
            answer = await self.writer.create(creation.create, claim.namespace)
        except AlreadyExists:
            return await self.reporter.report(state, observed, None, errors.create_pending(), is_reference_stale=stale)
        except (ApiError, ConnectionError, TimeoutError) as error:
            if isinstance(error, ApiError) and is_refusal(error):
                refused = errors.failure(error.message)
                return await self.reporter.report(state, observed, None, refused, is_reference_stale=stale)
            if is_ambiguous(error):
                state.unconfirmed = claim.name
            raise
        self.reporter.confirm_adoption(state, claim, claim.name)
        latest = await self._annotated(observed, annotating)
        if latest is None:
            return _AGAIN
        return await self.reporter.report(state, latest, SandboxView.from_object(answer), is_reference_stale=stale)

    # --- a claim that has its sandbox --------------------------------------------------------------------------------

    async def _sync(self, state: ClaimState, observed: Observed, decision: Sync) -> Result:
        """Bring the claim's sandbox in line with the claim, and delete its duplicates."""
        claim, sandbox, claim_error = observed.claim, decision.sandbox, decision.error
        self.reporter.confirm_adoption(state, claim, sandbox.name)
        if decision.patch is not None:
            try:
                answer = await self.writer.patch(decision.patch, sandbox.namespace)
            except NotFound:
                self.caches.sandboxes.record_deletion(key_of(sandbox), sandbox.uid)
                return _AGAIN
            except ApiError as error:
                if not is_refusal(error):
                    raise
                claim_error = errors.failure(error.message)
            else:
                sandbox = SandboxView.from_object(answer)
        if claim_error is None and (failure := await self._bind(state, observed, sandbox)) is not None:
            return await self._unbound(state, observed, sandbox, failure)
        result = await self.reporter.report(state, observed, sandbox, claim_error)
        if decision.duplicates and not await self._delete_duplicates(claim, sandbox, decision.duplicates):
            return _AGAIN
        return result

    async def _delete_duplicates(self, claim: ClaimView, stays: SandboxView, duplicates: Sequence[SandboxView]) -> bool:
        """Delete the duplicates. False if the API's state contradicts the decision and it must be made again."""
        try:
            answer = await self.writer.client.get(SANDBOX_CLAIM, claim.name, claim.namespace)
        except NotFound:
            return True
        self.caches.claims.record_write(answer)
        deletes = duplicate_deletions(claim, ClaimView.from_object(answer), stays, duplicates)
        for delete in deletes:
            try:
                await self.writer.delete(delete, claim.namespace)
            except Conflict:
                await self.writer.refresh(SANDBOX, delete.name, claim.namespace)
                return False
            self.reporter.record_event(claim, duplicates_deleted(delete.name, stays.name))
        return bool(deletes)


def _reference(pod: PodView) -> Object:
    """The part of a pod that a channel to it needs."""
    return {
        "metadata": {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid},
        "spec": {"nodeName": pod.node_name},
    }


def legacy_policy_deletion(claim: ClaimView, found: NetworkPolicyView | None) -> Delete | None:
    """Deletion of the NetworkPolicy with the name that was reserved for the claim, if the claim owns it."""
    if found is None or found.deleting or not found.controlled_by(claim):
        return None
    return Delete(NETWORK_POLICY, found.name, found.uid)
