"""ReplicaSet: a number of pods that are all alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from sandpool.api.causes import Cause
from sandpool.api.resource import Object
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
        # kube-apiserver calls it a deployment, too.
        yield from validate_selector(spec.get("selector"), "deployment")
        yield from validate_replicated_template(spec)


def validate_replicated_template(spec: Object) -> Iterator[Cause]:
    """Of a ReplicaSet, or of a Deployment, which makes ReplicaSets."""
    selector, template = spec.get("selector"), spec["template"]
    if not is_valid_selector(selector):
        yield invalid_selector(selector, "invalid label selector")
        return
    yield from validate_selected(template, selector)
    yield from validate_template(template)
    yield from validate_restart_always(template, "ReplicaSet")
