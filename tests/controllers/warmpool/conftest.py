"""Pools, templates and members to decide about."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sandpool.api.labels import LAUNCH_TYPE, TEMPLATE_HASH, TEMPLATE_REF_HASH, WARM_POOL
from sandpool.api.names import name_hash
from sandpool.api.resource import Object
from sandpool.api.views import PodView, SandboxView, TemplateView, WarmPoolView
from sandpool.controllers.options import WarmPoolOptions
from sandpool.controllers.revision import TemplateRevision
from sandpool.controllers.warmpool.plan import Observed, Plan, PoolState, plan

START = datetime(2026, 11, 1, 12, tzinfo=UTC)


class Scene:
    """The input of a plan, with defaults for everything that a test does not set."""

    now = START

    def at(self, seconds: float) -> datetime:
        return START + timedelta(seconds=seconds)

    def stamp(self, seconds: float) -> str:
        return self.at(seconds).strftime("%Y-%m-%dT%H:%M:%SZ")

    def pool(self, replicas: int | None = 3, strategy: str = "", **rolling: Any) -> WarmPoolView:
        spec: Object = {"sandboxTemplateRef": {"name": "test-template"}}
        if replicas is not None:
            spec["replicas"] = replicas
        if strategy or rolling:
            spec["updateStrategy"] = {"type": strategy, "rollingUpdate": rolling}
        metadata = {"namespace": "ns", "name": "test-pool", "uid": "pool-uid", "generation": 4}
        return WarmPoolView.from_object({"metadata": metadata, "spec": spec})

    def revision(
        self, image: str = "example.com/image:1", name: str = "test-template", **spec: Any
    ) -> TemplateRevision:
        pod_template: Object = {"spec": {"containers": [{"name": "main", "image": image}]}}
        obj = {"metadata": {"name": name}, "spec": {"podTemplate": pod_template, **spec}}
        return TemplateRevision.of(TemplateView.from_object(obj))

    def member(
        self,
        name: str,
        *,
        ready: bool = True,
        age: float = 0,
        since: float | None = None,
        image: str = "example.com/image:1",
        template: str = "test-template",
        owner: str | None = "pool-uid",
        labels: dict[str, str | None] | None = None,
        deleting: bool = False,
        finished: bool = False,
        scheduled: tuple[str, float] | None = None,
        pool: str = "test-pool",
        namespace: str = "ns",
    ) -> SandboxView:
        """``since`` is the age of the Ready condition. ``scheduled`` is the status and age of the PodScheduled
        condition."""
        revision = self.revision(image, template)
        metadata: Object = {
            "namespace": namespace,
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": f"rv-{name}",
            "creationTimestamp": self.stamp(-age),
            "labels": {
                WARM_POOL: name_hash(pool),
                LAUNCH_TYPE: "warm",
                TEMPLATE_REF_HASH: revision.ref_hash,
                TEMPLATE_HASH: revision.hash,
            },
        }
        for key, value in (labels or {}).items():
            if value is None:
                del metadata["labels"][key]
            else:
                metadata["labels"][key] = value
        if owner is not None:
            metadata["ownerReferences"] = [
                {
                    "apiVersion": "extensions.agents.x-k8s.io/v1alpha1",
                    "kind": "SandboxWarmPool",
                    "name": pool,
                    "uid": owner,
                    "controller": True,
                }
            ]
        if deleting:
            metadata["deletionTimestamp"] = self.stamp(0)
        conditions: list[Object] = []
        if ready or since is not None:
            moment = self.stamp(-(age if since is None else since))
            conditions.append({"type": "Ready", "status": str(ready), "reason": "x", "lastTransitionTime": moment})
        if finished:
            conditions.append({"type": "Finished", "status": "True", "reason": "x"})
        if scheduled is not None:
            status, ago = scheduled
            reason = "PodScheduled" if status == "True" else "Unschedulable"
            moment = self.stamp(-ago)
            conditions.append(
                {"type": "PodScheduled", "status": status, "reason": reason, "lastTransitionTime": moment}
            )
        return SandboxView.from_object(
            {"metadata": metadata, "spec": revision.spec, "status": {"conditions": conditions}}
        )

    def members(self, count: int, prefix: str = "m", **fields: Any) -> list[SandboxView]:
        return [self.member(f"{prefix}{number}", **fields) for number in range(count)]

    def pod(self, name: str, *, unschedulable: bool = True, deleting: bool = False) -> PodView:
        metadata: Object = {"namespace": "ns", "name": name, "uid": f"pod-{name}"}
        if deleting:
            metadata["deletionTimestamp"] = self.stamp(0)
        conditions = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}] if unschedulable else []
        return PodView.from_object({"metadata": metadata, "status": {"conditions": conditions}})

    def observed(
        self,
        pool: WarmPoolView,
        sandboxes: Iterable[SandboxView] = (),
        *,
        pods: Iterable[PodView] = (),
        **fields: Any,
    ) -> Observed:
        by_name = {pod.name: pod for pod in pods}
        given: dict[str, Any] = {"revision": self.revision(), "now": self.now, **fields}
        return Observed(pool, list(sandboxes), pod_of=lambda sandbox: by_name.get(sandbox.pod_name), **given)

    def plan(
        self,
        pool: WarmPoolView,
        sandboxes: Iterable[SandboxView] = (),
        *,
        settings: WarmPoolOptions | None = None,
        state: PoolState | None = None,
        **fields: Any,
    ) -> Plan:
        return plan(self.observed(pool, sandboxes, **fields), settings or WarmPoolOptions(), state or PoolState())

    def with_status(self, pool: WarmPoolView, plan: Plan) -> WarmPoolView:
        """The pool once the plan's status is written."""
        if plan.status is None:
            return pool
        known = {
            "replicas": pool.status.replicas,
            "readyReplicas": pool.status.ready_replicas,
            "updatedReplicas": pool.status.updated_replicas,
            "updatedReadyReplicas": pool.status.updated_ready_replicas,
            "selector": pool.status.selector,
            "observedGeneration": pool.status.observed_generation,
            "conditions": pool.status.conditions,
        }
        status = {**known, **plan.status.body["status"]}
        return replace(pool, status=type(pool.status).from_object(status))


@pytest.fixture(scope="session")  # it holds nothing, and properties may use it too
def scene() -> Scene:
    return Scene()
