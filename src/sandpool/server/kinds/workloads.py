"""Deployment, ReplicaSet and DaemonSet: templates of pods, and how many of them there should be.

Nothing here acts on them: they are stored for those who do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Final

from sandpool.api.causes import Cause, forbidden, immutable, invalid, not_supported, required
from sandpool.api.resource import Object
from sandpool.server.kinds.cow import fill_absent, fill_empty, inside, keep
from sandpool.server.kinds.kind import KindRules
from sandpool.server.kinds.label_selectors import is_empty, matches, validate_label_selector
from sandpool.server.kinds.metadata import validate_annotations, validate_labels
from sandpool.server.kinds.pod_spec import default_pod_spec, validate_pod_spec
from sandpool.server.kinds.portions import is_zero, validate_portion

NOT_NEGATIVE: Final = "must be greater than or equal to 0"


def default_template(template: Object) -> Object:
    return inside(fill_absent(template, {"metadata": {}, "spec": {}}), "spec", default_pod_spec)


def validate_template(template: Object, selector: Object | None, path: str, kind: str) -> Iterator[Cause]:
    """A template whose pods are found again by the selector, and live until they are taken away."""
    metadata, spec = template.get("metadata") or {}, template.get("spec") or {}
    labels = metadata.get("labels") or {}
    readable = selector is None or not any(validate_label_selector(selector, ""))
    if readable and (selector is None or (not is_empty(selector) and not matches(selector, labels))):
        shown = labels or None
        yield invalid(f"{path}.metadata.labels", shown, "`selector` does not match template `labels`")
    yield from validate_labels(labels, f"{path}.labels")
    yield from validate_annotations(metadata.get("annotations") or {}, f"{path}.annotations")
    yield from validate_pod_spec(spec, f"{path}.spec")
    if spec.get("ephemeralContainers"):
        yield forbidden(f"{path}.spec.ephemeralContainers", "ephemeral containers not allowed in pod template")
    if spec.get("restartPolicy") != "Always":
        yield not_supported(f"{path}.spec.restartPolicy", spec.get("restartPolicy"), ("Always",))
    if spec.get("activeDeadlineSeconds") is not None:
        why = f"activeDeadlineSeconds in {kind} is not Supported"
        yield forbidden(f"{path}.spec.activeDeadlineSeconds", why)


def validate_selector(selector: Object | None, kind: str, *, needed: bool = True) -> Iterator[Cause]:
    if selector is None:
        if needed:
            yield required("spec.selector")
        return
    yield from validate_label_selector(selector, "spec.selector")
    if is_empty(selector):
        yield invalid("spec.selector", selector, f"empty selector is invalid for {kind}")


def validate_counts(spec: Object, *fields: str) -> Iterator[Cause]:
    for field in fields:
        if (spec.get(field) or 0) < 0:
            yield invalid(f"spec.{field}", spec[field], NOT_NEGATIVE)


class WorkloadRules(KindRules):
    """What they have in common, with each other and with StatefulSet."""

    spec_generation = True
    defaults: ClassVar[Object] = {}
    status: ClassVar[Object] = {}  # of a new one
    # Fields of the status that count some of its replicas; with a value: some of those that are ready, named so.
    parts: ClassVar[Mapping[str, str]] = {}

    def default(self, obj: Object, old: Object | None = None) -> Object:
        obj = fill_absent(obj, {"spec": {}, "status": self.status})
        return obj if old is not None and obj["spec"] is old.get("spec") else inside(obj, "spec", self.default_spec)

    def default_spec(self, spec: Object) -> Object:
        return inside(fill_absent(spec, {"template": {}, **self.defaults}), "template", default_template)

    def prepare_create(self, obj: Object) -> Object:
        return {**obj, "status": self.status}

    def prepare_status_update(self, new: Object, old: Object) -> Object:
        return inside(new, "metadata", lambda metadata: keep(metadata, old["metadata"], "labels"))

    def validate(self, new: Object, old: Object | None) -> list[Cause]:
        if old is None:
            return list(self.validate_spec(new["spec"]))
        if new["spec"] is old["spec"]:
            return []
        return [*self.validate_spec(new["spec"]), *self.validate_change(new["spec"], old["spec"])]

    def validate_spec(self, spec: Object) -> Iterator[Cause]:
        raise NotImplementedError

    def validate_change(self, spec: Object, before: Object) -> Iterator[Cause]:
        if spec.get("selector") != before.get("selector"):
            yield immutable("spec.selector", spec.get("selector"))

    def validate_status(self, new: Object, old: Object) -> list[Cause]:
        status = new.get("status") or {}
        counts = {key: value for key, value in status.items() if isinstance(value, int)}
        found = [invalid(f"status.{key}", value, NOT_NEGATIVE) for key, value in counts.items() if value < 0]
        for field, whole in self.parts.items():
            count = counts.get(field, 0)
            if count > counts.get("replicas", 0):
                found.append(invalid(f"status.{field}", count, "cannot be greater than status.replicas"))
            if whole and count > counts.get("readyReplicas", 0):
                found.append(invalid(f"status.{field}", count, f"cannot be greater than {whole}"))
        return found


class DeploymentRules(WorkloadRules):
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
        return inside(super().default_spec(spec), "strategy", _default_deployment_strategy)

    def generation_moves(self, new: Object, old: Object) -> bool:
        annotations = new["metadata"].get("annotations") != old["metadata"].get("annotations")
        return annotations or super().generation_moves(new, old)

    def validate_spec(self, spec: Object) -> Iterator[Cause]:
        yield from validate_counts(spec, "replicas")
        yield from validate_selector(spec.get("selector"), "deployment")
        yield from validate_template(spec["template"], spec.get("selector"), "spec.template", "ReplicaSet")
        yield from _validate_deployment_strategy(spec["strategy"], "spec.strategy")
        yield from validate_counts(spec, "minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds")
        if spec["progressDeadlineSeconds"] <= (spec.get("minReadySeconds") or 0):
            why = "must be greater than minReadySeconds"
            yield invalid("spec.progressDeadlineSeconds", spec["progressDeadlineSeconds"], why)


def _default_deployment_strategy(strategy: Object) -> Object:
    strategy = fill_empty(strategy, {"type": "RollingUpdate"})
    if strategy["type"] != "RollingUpdate":
        return strategy
    portions = {"maxUnavailable": "25%", "maxSurge": "25%"}
    return inside(
        fill_absent(strategy, {"rollingUpdate": {}}), "rollingUpdate", lambda update: fill_absent(update, portions)
    )


def _validate_deployment_strategy(strategy: Object, path: str) -> Iterator[Cause]:
    update = strategy.get("rollingUpdate") or {}
    if strategy["type"] == "RollingUpdate":
        unavailable, surge = update["maxUnavailable"], update["maxSurge"]
        yield from validate_portion(unavailable, f"{path}.rollingUpdate.maxUnavailable")
        yield from validate_portion(surge, f"{path}.rollingUpdate.maxSurge", whole=False)
        if is_zero(unavailable) and is_zero(surge):
            why = "may not be 0 when `maxSurge` is 0"
            yield invalid(f"{path}.rollingUpdate.maxUnavailable", unavailable, why)
    elif strategy["type"] != "Recreate":
        yield not_supported(path, strategy, ("Recreate", "RollingUpdate"))
    elif "rollingUpdate" in strategy:
        why = "may not be specified when strategy `type` is 'Recreate'"
        yield forbidden(f"{path}.rollingUpdate", why)


class ReplicaSetRules(WorkloadRules):
    defaults: ClassVar[Object] = {"replicas": 1}
    status: ClassVar[Object] = {"replicas": 0}
    parts: ClassVar[Mapping[str, str]] = {
        "fullyLabeledReplicas": "",
        "readyReplicas": "",
        "availableReplicas": "readyReplicas",
    }

    def validate_spec(self, spec: Object) -> Iterator[Cause]:
        yield from validate_counts(spec, "replicas", "minReadySeconds")
        # kube-apiserver calls it a deployment, too.
        yield from validate_selector(spec.get("selector"), "deployment")
        yield from validate_template(spec["template"], spec.get("selector"), "spec.template", "ReplicaSet")


class DaemonSetRules(WorkloadRules):
    defaults: ClassVar[Object] = {"updateStrategy": {}, "revisionHistoryLimit": 10}
    status: ClassVar[Object] = {
        "currentNumberScheduled": 0,
        "numberMisscheduled": 0,
        "desiredNumberScheduled": 0,
        "numberReady": 0,
    }
    _GENERATION: Final = "deprecated.daemonset.template.generation"

    def default_spec(self, spec: Object) -> Object:
        return inside(super().default_spec(spec), "updateStrategy", _default_daemon_strategy)

    def prepare_create(self, obj: Object) -> Object:
        return _with_template_generation(super().prepare_create(obj), self._GENERATION, 1)

    def prepare_update(self, new: Object, old: Object) -> Object:
        generation = int((old["metadata"].get("annotations") or {}).get(self._GENERATION) or 0)
        moved = new["spec"].get("template") != old["spec"].get("template")
        return _with_template_generation(new, self._GENERATION, generation + 1 if moved else generation)

    def validate_spec(self, spec: Object) -> Iterator[Cause]:
        yield from validate_selector(spec.get("selector"), "daemonset", needed=False)
        yield from validate_template(spec["template"], spec.get("selector"), "spec.template", "DaemonSet")
        yield from validate_counts(spec, "minReadySeconds")
        yield from _validate_daemon_strategy(spec["updateStrategy"], "spec.updateStrategy")
        yield from validate_counts(spec, "revisionHistoryLimit")


def _with_template_generation(obj: Object, annotation: str, generation: int) -> Object:
    """DaemonSets counted their templates before there was metadata.generation, and clients still read it."""
    annotations = obj["metadata"].get("annotations") or {}
    if annotations.get(annotation) == str(generation):
        return obj
    return {**obj, "metadata": {**obj["metadata"], "annotations": {**annotations, annotation: str(generation)}}}


def _default_daemon_strategy(strategy: Object) -> Object:
    strategy = fill_empty(strategy, {"type": "RollingUpdate"})
    if strategy["type"] != "RollingUpdate":
        return strategy
    portions = {"maxUnavailable": 1, "maxSurge": 0}
    return inside(
        fill_absent(strategy, {"rollingUpdate": {}}), "rollingUpdate", lambda update: fill_absent(update, portions)
    )


def _validate_daemon_strategy(strategy: Object, path: str) -> Iterator[Cause]:
    if strategy["type"] == "RollingUpdate":
        unavailable, surge = strategy["rollingUpdate"]["maxUnavailable"], strategy["rollingUpdate"]["maxSurge"]
        yield from validate_portion(unavailable, f"{path}.rollingUpdate.maxUnavailable")
        yield from validate_portion(surge, f"{path}.rollingUpdate.maxSurge")
        if not is_zero(unavailable) and not is_zero(surge):
            why = "may not be set when maxUnavailable is non-zero"
            yield invalid(f"{path}.rollingUpdate.maxSurge", surge, why)
        elif is_zero(unavailable) and is_zero(surge):
            yield required(f"{path}.rollingUpdate.maxUnavailable", "cannot be 0 when maxSurge is 0")
    elif strategy["type"] != "OnDelete":
        yield not_supported(path, strategy, ("RollingUpdate", "OnDelete"))
