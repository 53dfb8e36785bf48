"""The common part of Deployment, ReplicaSet, DaemonSet and StatefulSet: a pod template and a selector.

No controller of this server makes pods from them. They are stored and validated for clients that expect the kinds,
and every create is answered with a warning that says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Final

from sandpool.api.causes import INVALID, Cause, forbidden, immutable, invalid, not_supported, required, shown
from sandpool.api.resource import Object
from sandpool.server.kinds.copy_on_write import fill_absent, inside
from sandpool.server.kinds.label_selectors import is_empty, matches, validate_label_selector
from sandpool.server.kinds.metadata import validate_annotations, validate_labels
from sandpool.server.kinds.pod_spec import default_pod_spec, validate_pod_spec
from sandpool.server.kinds.strategy import KindStrategy

NOT_NEGATIVE: Final = "must be greater than or equal to 0"
_TEMPLATE: Final = "spec.template"
_NO_CONTROLLER: Final = ("this server stores the object but runs no controller for it: no pods will be created",)


class WorkloadStrategy(KindStrategy):
    spec_generation = True
    defaults: ClassVar[Object] = {}
    status: ClassVar[Object] = {}  # of a new object
    # Status fields that count a subset of the replicas. With a value: of readyReplicas, by that name in messages.
    parts: ClassVar[Mapping[str, str]] = {}

    def default(self, obj: Object, old: Object | None = None) -> Object:
        obj = fill_absent(obj, {"spec": {}, "status": self.status})
        return obj if old is not None and obj["spec"] is old.get("spec") else inside(obj, "spec", self.default_spec)

    def default_spec(self, spec: Object) -> Object:
        return inside(fill_absent(spec, {"template": {}, **self.defaults}), "template", _default_template)

    def prepare_create(self, obj: Object) -> Object:
        return {**obj, "status": self.status}

    def validate(self, new: Object, old: Object | None) -> list[Cause]:
        if old is None:
            return list(self.validate_spec(new["spec"], None))
        if new["spec"] is old["spec"]:
            return []
        spec, before = new["spec"], old["spec"]
        return [*self.validate_spec(spec, before), *self.validate_change(spec, before)]

    def warnings(self, new: Object, old: Object | None) -> Sequence[str]:
        return _NO_CONTROLLER if old is None else ()

    def validate_spec(self, spec: Object, before: Object | None) -> Iterator[Cause]:
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
        before = (old.get("status") or {}).get("collisionCount")
        now = counts.get("collisionCount", 0)
        if before is not None and ("collisionCount" not in counts or now < before):
            found.append(invalid("status.collisionCount", now, "cannot be decremented"))
        return found


def _default_template(template: Object) -> Object:
    return inside(fill_absent(template, {"metadata": {}, "spec": {}}), "spec", default_pod_spec)


def validate_counts(spec: Object, *fields: str) -> Iterator[Cause]:
    for field in fields:
        if (spec.get(field) or 0) < 0:
            yield invalid(f"spec.{field}", spec[field], NOT_NEGATIVE)


def validate_selector(selector: Object | None, kind: str, *, needed: bool = True) -> Iterator[Cause]:
    """Validate the selector. ``kind`` is the name that kube-apiserver uses in its messages."""
    if selector is None:
        if needed:
            yield required("spec.selector")
        return
    yield from validate_label_selector(selector, "spec.selector")
    if is_empty(selector):
        yield invalid("spec.selector", selector, f"empty selector is invalid for {kind}")


def is_valid_selector(selector: Object | None) -> bool:
    """Whether a selector can be evaluated. A missing selector can: it selects nothing."""
    return selector is None or not any(validate_label_selector(selector, ""))


def invalid_selector(selector: Object | None, why: str = "") -> Cause:
    return Cause("spec.selector", INVALID, f"Invalid value: {shown(selector)}" + (f": {why}" if why else ""))


def validate_selected(template: Object, selector: Object | None) -> Iterator[Cause]:
    """Validate that the selector matches the labels of the template."""
    labels = (template.get("metadata") or {}).get("labels") or {}
    if is_valid_selector(selector) and (selector is None or (not is_empty(selector) and not matches(selector, labels))):
        yield invalid(f"{_TEMPLATE}.metadata.labels", labels or None, "`selector` does not match template `labels`")


def validate_template(template: Object) -> Iterator[Cause]:
    metadata, spec = template.get("metadata") or {}, template.get("spec") or {}
    yield from validate_labels(metadata.get("labels") or {}, f"{_TEMPLATE}.labels")
    yield from validate_annotations(metadata.get("annotations") or {}, f"{_TEMPLATE}.annotations")
    yield from validate_pod_spec(spec, f"{_TEMPLATE}.spec")
    if spec.get("ephemeralContainers"):
        yield forbidden(f"{_TEMPLATE}.spec.ephemeralContainers", "ephemeral containers not allowed in pod template")


def validate_restart_always(template: Object, kind: str) -> Iterator[Cause]:
    """Validate that the template's restart policy is Always."""
    spec = template.get("spec") or {}
    if spec.get("restartPolicy") != "Always":
        yield not_supported(f"{_TEMPLATE}.spec.restartPolicy", spec.get("restartPolicy"), ("Always",))
    if spec.get("activeDeadlineSeconds") is not None:
        why = f"activeDeadlineSeconds in {kind} is not Supported"
        yield forbidden(f"{_TEMPLATE}.spec.activeDeadlineSeconds", why)
