"""Deployment and ReplicaSet: interchangeable pods made from one template."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from sandpool.api.causes import Cause, forbidden, invalid, not_supported
from sandpool.api.resource import Object
from sandpool.server.kinds.copy_on_write import fill_absent, fill_empty, inside, keep
from sandpool.server.kinds.int_or_percent import is_zero, validate_int_or_percent
from sandpool.server.kinds.workloads import (
    WorkloadStrategy,
    invalid_selector,
    is_valid_selector,
    validate_counts,
    validate_restart_always,
    validate_selected,
    validate_selector,
    validate_template,
)


class DeploymentStrategy(WorkloadStrategy):
    defaults: ClassVar[Object] = {
        "replicas": 1,
        "strategy": {},
        "revisionHistoryLimit": 10,
        "progressDeadlineSeconds": 600,
    }
    parts: ClassVar[Mapping[str, str]] = {
        "updatedReplicas": "",
        "readyReplicas": "",
        "availableReplicas": "readyReplicas",
    }

    def default_spec(self, spec: Object) -> Object:
        return inside(super().default_spec(spec), "strategy", _default_strategy)

    def prepare_status_update(self, new: Object, old: Object) -> Object:
        return inside(new, "metadata", lambda metadata: keep(metadata, old["metadata"], "labels"))

    def bumps_generation(self, new: Object, old: Object) -> bool:
        """Annotations count, too, because the Deployment controller copies them to ReplicaSets."""
        annotations = new["metadata"].get("annotations") != old["metadata"].get("annotations")
        return annotations or super().bumps_generation(new, old)

    def validate_spec(self, spec: Object, before: Object | None) -> Iterator[Cause]:
        yield from validate_counts(spec, "replicas")
        yield from validate_selector(spec.get("selector"), "deployment")
        yield from validate_replicated_template(spec)
        yield from _validate_strategy(spec["strategy"], "spec.strategy")
        yield from validate_counts(spec, "minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds")
        if spec["progressDeadlineSeconds"] <= (spec.get("minReadySeconds") or 0):
            why = "must be greater than minReadySeconds"
            yield invalid("spec.progressDeadlineSeconds", spec["progressDeadlineSeconds"], why)


def _default_strategy(strategy: Object) -> Object:
    strategy = fill_empty(strategy, {"type": "RollingUpdate"})
    if strategy["type"] != "RollingUpdate":
        return strategy
    portions = {"maxUnavailable": "25%", "maxSurge": "25%"}
    return inside(
        fill_absent(strategy, {"rollingUpdate": {}}), "rollingUpdate", lambda update: fill_absent(update, portions)
    )


def _validate_strategy(strategy: Object, path: str) -> Iterator[Cause]:
    if strategy["type"] == "RollingUpdate":
        unavailable, surge = strategy["rollingUpdate"]["maxUnavailable"], strategy["rollingUpdate"]["maxSurge"]
        yield from validate_int_or_percent(unavailable, f"{path}.rollingUpdate.maxUnavailable")
        yield from validate_int_or_percent(surge, f"{path}.rollingUpdate.maxSurge", whole=False)
        if is_zero(unavailable) and is_zero(surge):
            why = "may not be 0 when `maxSurge` is 0"
            yield invalid(f"{path}.rollingUpdate.maxUnavailable", unavailable, why)
    elif strategy["type"] != "Recreate":
        yield not_supported(path, strategy, ("Recreate", "RollingUpdate"))
    elif "rollingUpdate" in strategy:
        why = "may not be specified when strategy `type` is 'Recreate'"
        yield forbidden(f"{path}.rollingUpdate", why)


class ReplicaSetStrategy(WorkloadStrategy):
    defaults: ClassVar[Object] = {"replicas": 1}
    status: ClassVar[Object] = {"replicas": 0}
    parts: ClassVar[Mapping[str, str]] = {
        "fullyLabeledReplicas": "",
        "readyReplicas": "",
        "availableReplicas": "readyReplicas",
    }

    def validate_spec(self, spec: Object, before: Object | None) -> Iterator[Cause]:
        yield from validate_counts(spec, "replicas", "minReadySeconds")
        # kube-apiserver's message says "deployment" for ReplicaSets, too.
        yield from validate_selector(spec.get("selector"), "deployment")
        yield from validate_replicated_template(spec)


def validate_replicated_template(spec: Object) -> Iterator[Cause]:
    """Validate the template of a ReplicaSet or Deployment."""
    selector, template = spec.get("selector"), spec["template"]
    if not is_valid_selector(selector):
        yield invalid_selector(selector, "invalid label selector")
        return
    yield from validate_selected(template, selector)
    yield from validate_template(template)
    yield from validate_restart_always(template, "ReplicaSet")
