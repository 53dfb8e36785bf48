"""Reconciles SandboxTemplates: keeps a template's label and NetworkPolicy as its plan requires."""

from __future__ import annotations

from typing import Final

from sandpool.api.kinds import SANDBOX_TEMPLATE
from sandpool.api.labels import TEMPLATE_REF_HASH
from sandpool.api.names import network_policy_name
from sandpool.api.resource import Key
from sandpool.api.views import NetworkPolicyView, TemplateView
from sandpool.controllers.dependencies import Dependencies
from sandpool.controllers.own_writes import OwnWriteFilter
from sandpool.controllers.template.plan import TemplatePlan, plan_template
from sandpool.controllers.writer import Create, OwnerLivenessCheck, Write
from sandpool.engine.controller import DONE, Controller, ReconcileIncomplete, Result
from sandpool.engine.metrics.controller import ControllerMetrics
from sandpool.engine.ratelimit import RECONCILES_PER_SECOND
from sandpool.engine.workqueue.metrics import QueueMetrics
from sandpool.engine.workqueue.queue import WorkQueue

_SUFFIX: Final = network_policy_name("")


class TemplateController:
    """Run ``controller`` once the caches are synced."""

    def __init__(self, dependencies: Dependencies, *, workers: int = 1) -> None:
        given = dependencies
        self.caches = given.caches
        self.writer = given.writer
        queue_metrics: QueueMetrics[Key] = QueueMetrics("sandboxtemplate", given.metrics, given.clock)
        self._own_writes = OwnWriteFilter(self._enqueue, self._has_work)
        self.controller: Controller[Key] = Controller(
            queue_metrics.name,
            self.reconcile,
            given.clock,
            given.rng,
            workers=workers,
            queue=WorkQueue(observer=queue_metrics),
            observer=ControllerMetrics(queue_metrics.name, workers, given.metrics),
            per_second=RECONCILES_PER_SECOND,
            middleware=(*given.middleware, self._own_writes.middleware),
        )
        self._owner_check = OwnerLivenessCheck(SANDBOX_TEMPLATE, given.writer)
        given.caches.templates.subscribe(self._template_changed, on_change_of=_template_reads)
        given.caches.network_policies.subscribe(self._policy_changed, on_change_of=_policy_reads)

    def _template_changed(self, key: Key, old: TemplateView | None, new: TemplateView | None) -> None:
        if new is not None:
            self._own_writes.enqueue(key)
        else:
            self._owner_check.forget(key)

    def _policy_changed(self, key: Key, old: NetworkPolicyView | None, new: NetworkPolicyView | None) -> None:
        """Enqueue the template for which the name of the policy is reserved, whatever created the policy."""
        template = Key(key.namespace, key.name.removesuffix(_SUFFIX))
        if template != key and template in self.caches.templates:
            self._own_writes.enqueue(template)

    def _enqueue(self, key: Key) -> None:
        self.controller.enqueue(key)

    async def reconcile(self, key: Key) -> Result:
        plan = self._plan(key)
        if plan.label is not None:
            await self.writer.patch(plan.label, key.namespace)
        if plan.policy is not None and await self._is_worth_it(plan.policy, key):
            await self.writer.perform(plan.policy, key.namespace)
        if plan.error:
            raise ReconcileIncomplete(plan.error)
        return DONE

    async def _is_worth_it(self, write: Write, key: Key) -> bool:
        template = self.caches.templates.get(key)
        return not isinstance(write, Create) or (
            template is not None and await self._owner_check.may_create_for(template)
        )

    def _plan(self, key: Key) -> TemplatePlan:
        template = self.caches.templates.get(key)
        if template is None:
            return TemplatePlan()
        policy = Key(key.namespace, network_policy_name(key.name))
        return plan_template(template, self.caches.network_policies.get(policy))

    def _has_work(self, key: Key) -> bool:
        return self._plan(key) != TemplatePlan()


def _template_reads(template: TemplateView) -> tuple[object, ...]:
    return template.uid, template.generation, template.deleting, template.labels.get(TEMPLATE_REF_HASH)


def _policy_reads(policy: NetworkPolicyView) -> tuple[object, ...]:
    return policy.uid, policy.deleting, policy.owner, policy.spec
