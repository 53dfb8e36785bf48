"""Reconciles Sandboxes: observes a sandbox and its children, performs the plan, writes the status.

``watches`` lists the changes that enqueue a sandbox. Its own writes do not (``OwnWriteFilter``): the status follows
from their answers.

Warm sandboxes are background work. The queue parks them until the background gate admits them, so that refilling a pool
never delays a client. They take up no worker while parked, and one that is claimed meanwhile is parked no longer.

If a create meets an object that the cache does not show, or only the annotation knows a pod, the controller reads that
object from the API and plans again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Final, NamedTuple

from sandpool.api.kinds import POD, SANDBOX, SANDBOX_CLAIM, SANDBOX_WARM_POOL
from sandpool.api.labels import LAUNCH_TYPE, LAUNCH_WARM, SANDBOX_FIELD_MANAGER, TRACE_CONTEXT
from sandpool.api.resource import Key, Object, shared_key
from sandpool.api.views import ClaimView, PodView, SandboxView, VolumeClaimView
from sandpool.controllers.dependencies import Dependencies
from sandpool.controllers.informers import key_of
from sandpool.controllers.options import SandboxOptions
from sandpool.controllers.own_writes import OwnWriteFilter
from sandpool.controllers.sandbox.expiry import ExpiryPlan
from sandpool.controllers.sandbox.plan import (
    ChildrenPlan,
    Observed,
    Outcome,
    PendingWrites,
    PerformResult,
    StatusPlan,
    compute_status,
    plan,
)
from sandpool.controllers.sandbox.state_loss import in_use_since
from sandpool.controllers.sandbox.volumes import volume_claim_names
from sandpool.controllers.sandbox.watches import watch
from sandpool.controllers.writer import ApiWriter, Create, OwnerLivenessCheck, Patch, Write
from sandpool.engine.background import ParkingQueue
from sandpool.engine.controller import DONE, Controller, ReconcileIncomplete, Result
from sandpool.engine.events import ObjectReference
from sandpool.engine.metrics.controller import ControllerMetrics
from sandpool.engine.ratelimit import RECONCILES_PER_SECOND
from sandpool.engine.tracing import Span
from sandpool.engine.workqueue.metrics import QueueMetrics
from sandpool.kube.errors import AlreadyExists, ApiError, Conflict, is_namespace_terminating

# Planning again more often would mean that an object appears and vanishes all the time, which is an error.
_ATTEMPTS: Final = 2

_NONE_PENDING: Final = PendingWrites()
_NO_VOLUME_CLAIMS: Final[Mapping[str, VolumeClaimView]] = {}


def is_foreground(sandbox: SandboxView | None) -> bool:
    """Whether a client may be waiting for a sandbox. None waits for a warm one, nor for one that was ready when it was
    adopted; unless it was not ready yet, or is not ready again."""
    if sandbox is None:
        return False
    if sandbox.labels.get(LAUNCH_TYPE) != LAUNCH_WARM:
        return True
    is_kept = sandbox.owner is not None and sandbox.owner.type is SANDBOX_WARM_POOL
    return not is_kept and not sandbox.ready


class SandboxController:
    """Run ``controller`` once the caches are synced."""

    def __init__(
        self, dependencies: Dependencies, options: SandboxOptions | None = None, *, workers: int = 100
    ) -> None:
        given = dependencies
        self.caches = given.caches
        self.recorder = given.recorder
        self.clock = given.clock
        self.options = options or SandboxOptions()
        self.writer = ApiWriter(given.writer.client, given.caches, field_manager=SANDBOX_FIELD_MANAGER)
        self.tracing = given.tracing
        queue_metrics: QueueMetrics[Key] = QueueMetrics("sandbox", given.metrics, given.clock)
        self._own_writes = OwnWriteFilter(self._enqueue, self._has_work)
        self.controller: Controller[Key] = Controller(
            queue_metrics.name,
            self.reconcile,
            given.clock,
            given.rng,
            workers=workers,
            queue=ParkingQueue(self._is_background, given.gate.submit, observer=queue_metrics),
            observer=ControllerMetrics(queue_metrics.name, workers, given.metrics),
            per_second=RECONCILES_PER_SECOND,
            middleware=(*given.middleware, self._own_writes.middleware),
        )
        # Writes that the last reconcile delayed; a sandbox without any is absent.
        self._pending: dict[Key, PendingWrites] = {}
        # Of the reconcile that has just ended: ``_has_work`` runs before any other task.
        self._outcome: Outcome | None = None
        self._owner_check = OwnerLivenessCheck(SANDBOX, self.writer)
        watch(given.caches, self._own_writes.enqueue, self._enqueue_later)

    def _enqueue_later(self, key: Key) -> None:
        """Enqueue a sandbox after a change of its pod that is written if it lasts, counted from now and not from the
        next reconcile."""
        waiting = self._pending.get(key, _NONE_PENDING)
        if waiting.status is None:
            self._pending[key] = replace(waiting, status=self.clock.now())
        self.controller.enqueue_after(key, self.options.status_delay.total_seconds())

    def _enqueue(self, key: Key) -> None:
        self.controller.enqueue(key)

    def _is_background(self, key: Key) -> bool:
        return not is_foreground(self.caches.sandboxes.get(key))

    # --- reconcile ---------------------------------------------------------------------------------------------------

    async def reconcile(self, key: Key) -> Result:
        for attempts_left in reversed(range(_ATTEMPTS)):
            sandbox = self.caches.sandboxes.get(key)
            if sandbox is None or sandbox.deleting or (sandbox := await self._with_trace(sandbox)) is None:
                break
            observed = self._observe(key, sandbox)
            match plan(observed, self.options, self.clock.now()):
                case StatusPlan() as status_plan:
                    return await self._finish(sandbox, status_plan)
                case ExpiryPlan() as expiry:
                    return await self._expire(sandbox, expiry)
                case ChildrenPlan() as children:
                    try:
                        result = await self._perform(sandbox, children, may_replan=attempts_left > 0)
                    except _StaleCache:
                        continue
                    status_plan = compute_status(observed, children, result, self.options, self.clock.now())
                    finished = await self._finish(sandbox, status_plan)
                    self._outcome = Outcome(observed, children, result.pod, status_plan)
                    return finished
        self._pending.pop(key, None)
        self._owner_check.forget(key)
        return DONE

    async def _with_trace(self, sandbox: SandboxView) -> SandboxView | None:
        """Return the sandbox with the trace that all its reconciles belong to: that of this reconcile if no client has
        begun one. None if the sandbox is gone."""
        context = self.tracing.context()
        if not context or sandbox.annotations.get(TRACE_CONTEXT):
            return sandbox
        body = {"metadata": {"uid": sandbox.uid, "annotations": {TRACE_CONTEXT: context}}}
        answer = await self.writer.patch_if_there(Patch(SANDBOX, sandbox.name, body), sandbox.namespace)
        return None if answer is None else SandboxView.from_object(answer)

    def _observe(self, key: Key, sandbox: SandboxView) -> Observed:
        caches = self.caches
        pod_name = sandbox.pod_name
        return Observed(
            sandbox,
            pods=caches.owned_pods(sandbox.uid),
            tracked_pod=caches.pods.get(key if pod_name == key.name else shared_key(key.namespace, pod_name)),
            service=caches.services.get(key),
            volume_claims=self._volume_claims(sandbox) if sandbox.volume_claim_templates else _NO_VOLUME_CLAIMS,
            waiting=self._pending.get(key, _NONE_PENDING),
            in_use_since=in_use_since(sandbox, self._claim_of(sandbox)),
        )

    def _volume_claims(self, sandbox: SandboxView) -> dict[str, VolumeClaimView]:
        known, namespace = self.caches.volume_claims, sandbox.namespace
        claims = {name: known.get(Key(namespace, name)) for name in volume_claim_names(sandbox)}
        return {name: claim for name, claim in claims.items() if claim is not None}

    def _claim_of(self, sandbox: SandboxView) -> ClaimView | None:
        owner = sandbox.owner
        if owner is None or owner.type is not SANDBOX_CLAIM:
            return None
        claim = self.caches.claims.get(Key(sandbox.namespace, owner.name))
        return claim if claim is not None and claim.uid == owner.uid else None

    def _has_work(self, key: Key) -> bool:
        """Whether a reconcile would write, or remember, anything else than the last one did."""
        outcome, self._outcome = self._outcome, None
        sandbox = self.caches.sandboxes.get(key)
        if sandbox is None or sandbox.deleting:
            return key in self._pending
        observed = self._observe(key, sandbox)
        if outcome is not None and outcome.holds(observed):
            return False
        now = self.clock.now()
        match plan(observed, self.options, now):
            case ExpiryPlan(children, itself, body):
                return any((children, itself, body))
            case StatusPlan(body):
                return body is not None
            case ChildrenPlan(volumes, pod, service) as children:
                if any((volumes.writes, pod.repair, pod.write, service and service.write)):
                    return True
                status_plan = compute_status(observed, children, PerformResult(pod.pod), self.options, now)
                return status_plan.status_patch is not None or status_plan.waiting != observed.waiting

    # --- performing --------------------------------------------------------------------------------------------------

    async def _perform(self, sandbox: SandboxView, children: ChildrenPlan, *, may_replan: bool) -> PerformResult:
        namespace = sandbox.namespace
        if children.creates and not await self._owner_check.may_create_for(sandbox):
            raise _StaleCache
        refresh = children.pod.refresh if may_replan else ""
        if refresh and await self.writer.refresh(POD, refresh, namespace):
            raise _StaleCache
        service = children.service.write if children.service is not None else None
        with self.tracing.span("reconcilePVCs"):
            volumes = (
                await self._step(namespace, children.volumes.writes, may_replan)
                if children.volumes.writes
                else _STEP_DONE
            )
        with self.tracing.span("reconcilePod") as span:
            pod_writes = (children.pod.repair, children.pod.write)
            pod = await self._step(namespace, pod_writes, may_replan) if pod_writes != (None, None) else _STEP_DONE
            if span.recording:
                _record_pod(span, children.pod.pod, self._pod_after(sandbox, children))
        services = await self._step(namespace, (service,), may_replan) if service is not None else _STEP_DONE
        pod_after = self._pod_after(sandbox, children)
        if volumes is pod is services is _STEP_DONE:
            return PerformResult(pod_after)
        return PerformResult(
            pod_after,
            volumes.message,
            pod.message,
            services.message,
            retry_after=max(each.retry_after for each in (volumes, pod, services)),
            namespace_terminating=any(each.namespace_terminating for each in (volumes, pod, services)),
        )

    async def _step(self, namespace: str, writes: tuple[Write | None, ...], may_replan: bool) -> _StepResult:
        """Perform the writes of one step until one fails. Other steps continue."""
        for write in writes:
            try:
                if write is not None:
                    await self.writer.perform(write, namespace)
            except AlreadyExists as error:
                if may_replan:
                    raise _StaleCache from error
                return _StepResult(error.message)
            except Conflict as error:
                if may_replan and isinstance(write, Patch):
                    await self.writer.refresh(write.type, write.name, namespace)
                    raise _StaleCache from error
                return _StepResult(error.message)
            except (ApiError, ConnectionError, TimeoutError) as error:
                asked = error.retry_after if isinstance(error, ApiError) else None
                return _StepResult(str(error) or type(error).__name__, asked or 0.0, is_namespace_terminating(error))
        return _STEP_DONE

    def _pod_after(self, sandbox: SandboxView, children: ChildrenPlan) -> PodView | None:
        """The pod after the writes, from the cache, which has the answers. None if it is gone."""
        pod, write = children.pod.pod, children.pod.write
        if pod is None:
            created = isinstance(write, Create)
            pod = self.caches.pods.get(key_of(sandbox)) if created else None
            return pod if pod is not None and pod.controlled_by(sandbox) else None
        now = self.caches.pods.get(key_of(pod))
        return now if now is not None and now.uid == pod.uid else None

    async def _finish(self, sandbox: SandboxView, status_plan: StatusPlan) -> Result:
        if status_plan.status_patch is not None:
            await self._write_status(sandbox, status_plan.status_patch)
        # Only after the write: a status that could not be written has waited long enough.
        key = key_of(sandbox)
        if status_plan.waiting == _NONE_PENDING:
            self._pending.pop(key, None)
        else:
            self._pending[key] = status_plan.waiting
        if status_plan.event is not None:
            self.recorder.event(_reference(sandbox), status_plan.event)
        if status_plan.loss is not None:
            self.recorder.event(_reference(sandbox), status_plan.loss)
            if (claim := self._claim_of(sandbox)) is not None:
                self.recorder.event(_claim_reference(claim), status_plan.loss)
        if status_plan.errors:
            raise ReconcileIncomplete(
                "; ".join(status_plan.errors),
                retry_after=status_plan.retry_after,
                namespace_terminating=status_plan.namespace_terminating,
            )
        return Result(_seconds(status_plan.requeue_after))

    async def _expire(self, sandbox: SandboxView, expiry: ExpiryPlan) -> Result:
        self._pending.pop(key_of(sandbox), None)
        failures = [await self._step(sandbox.namespace, (child,), False) for child in expiry.children]
        errors = [each.message for each in failures if each.message]
        if expiry.sandbox is not None:
            await self.writer.delete(expiry.sandbox, sandbox.namespace)
        elif errors:
            raise ReconcileIncomplete("; ".join(errors), retry_after=max(each.retry_after for each in failures))
        elif expiry.status_patch is not None:
            await self._write_status(sandbox, expiry.status_patch)
        return DONE

    async def _write_status(self, sandbox: SandboxView, status: Object) -> None:
        """Write the status. A status patch has no UID precondition, and one on the resource version would fail whenever
        another client changes a label. If the patch has hit a successor of the same name, enqueue that one."""
        patch = Patch(SANDBOX, sandbox.name, status, "status")
        answer = await self.writer.patch_if_there(patch, sandbox.namespace)
        if answer is not None and answer["metadata"]["uid"] != sandbox.uid:
            self.controller.enqueue(key_of(sandbox))


def _record_pod(span: Span, before: PodView | None, after: PodView | None) -> None:
    if after is not None:
        event = "NewPodStatusObserved" if before is None else "ExistingPodStatusObserved"
        span.event(event, {"pod.Name": after.name, "pod.Phase": after.phase})


class _StepResult(NamedTuple):
    """The error of a step, empty if there is none; the seconds the API asked us to wait; and whether the API refused a
    create because the namespace is being deleted."""

    message: str = ""
    retry_after: float = 0.0
    namespace_terminating: bool = False


_STEP_DONE: Final = _StepResult()


class _StaleCache(Exception):
    """The plan missed an object that exists. The cache has it now: plan again."""


def _claim_reference(claim: ClaimView) -> ObjectReference:
    return ObjectReference(
        SANDBOX_CLAIM.api_version, SANDBOX_CLAIM.kind, claim.name, claim.namespace, claim.uid, claim.resource_version
    )


def _reference(sandbox: SandboxView) -> ObjectReference:
    return ObjectReference(
        SANDBOX.api_version, SANDBOX.kind, sandbox.name, sandbox.namespace, sandbox.uid, sandbox.resource_version
    )


def _seconds(wait: timedelta | None) -> float | None:
    return None if wait is None else wait.total_seconds()
