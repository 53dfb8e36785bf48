"""ReplicaSet: a number of pods that are all alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from sandpool.api.causes import Cause
from sandpool.api.resource import Object
from sandpool.server.kinds.workloads import (
    WorkloadRules,
    is_readable,
    unreadable,
    validate_counts,
    validate_lasting,
    validate_selected,
    validate_selector,
    validate_template,
)


class ReplicaSetRules(WorkloadRules):
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
    if not is_readable(selector):
        yield unreadable(selector, "invalid label selector")
        return
    yield from validate_selected(template, selector)
    yield from validate_template(template)
    yield from validate_lasting(template, "ReplicaSet")
