"""Pod: mostly immutable after creation, deleted with a grace period."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sandpool.api import causes
from sandpool.api.causes import Cause, forbidden, quoted, required
from sandpool.api.json_cache import JsonCache, edited_once_per_json, once_per_json, text_of
from sandpool.api.kinds import POD
from sandpool.api.resource import Object
from sandpool.kube.errors import Conflict, invalid
from sandpool.server.kinds.containers import validate_image_padding
from sandpool.server.kinds.copy_on_write import drop, fill_absent, inside, keep, put
from sandpool.server.kinds.differences import differences
from sandpool.server.kinds.pod_admission import admit_pod
from sandpool.server.kinds.pod_spec import default_own_pod_spec, default_pod_spec, validate_pod_spec
from sandpool.server.kinds.pod_status import (
    default_pod_status,
    keep_unknown_status_fields,
    scheduling_gated_condition,
    validate_pod_status,
)
from sandpool.server.kinds.resource_requirements import qos_class
from sandpool.server.kinds.scheduling import validate_added_tolerations, validate_removed_gates
from sandpool.server.kinds.strategy import ClusterReader, KindStrategy

_LARGEST: Final = 2**31 - 1
_MAY_CHANGE: Final = ",".join(
    (
        "`spec.containers[*].image`",
        "`spec.initContainers[*].image`",
        "`spec.activeDeadlineSeconds`",
        "`spec.tolerations` (only additions to existing tolerations)",
        "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
    )
)


class PodStrategy(KindStrategy):
    spec_generation = True
    field_labels = frozenset(
        {
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.podIPs",
            "status.nominatedNodeName",
        }
    )

    def default(self, obj: Object, old: Object | None = None) -> Object:
        obj = fill_absent(obj, {"spec": {}, "status": {}})
        if old is None or obj["spec"] is not old.get("spec"):
            obj = inside(obj, "spec", _new_spec_with_defaults if old is None else _with_defaults)
        return inside(obj, "status", default_pod_status)

    def admit(self, obj: Object, old: Object | None, cluster: ClusterReader) -> Object:
        return obj if old is not None and obj["spec"] is old["spec"] else admit_pod(obj, old, cluster)

    def prepare_create(self, obj: Object) -> Object:
        status: Object = {"phase": "Pending", "qosClass": _qos_class(obj["spec"])}
        if obj["spec"].get("schedulingGates"):
            status["conditions"] = [scheduling_gated_condition(obj["metadata"].get("creationTimestamp"))]
        return {**obj, "status": status}

    def prepare_status_update(self, new: Object, old: Object) -> Object:
        new = inside(new, "metadata", lambda metadata: keep(metadata, old["metadata"], "ownerReferences"))
        return inside(new, "status", lambda status: keep_unknown_status_fields(status, old.get("status") or {}))

    def validate(self, new: Object, old: Object | None) -> list[Cause]:
        if old is not None and new["spec"] is old["spec"]:
            return []
        found = _validate_spec_once(new)
        return [*found, *(_validate_create(new) if old is None else _validate_update(new["spec"], old["spec"]))]

    def validate_status(self, new: Object, old: Object) -> list[Cause]:
        return list(validate_pod_status(new, old))

    def grace_period(self, obj: Object, requested: int | None) -> int:
        spec = obj.get("spec") or {}
        if not spec.get("nodeName") or (obj.get("status") or {}).get("phase") in ("Failed", "Succeeded"):
            return 0
        period: int = spec.get("terminationGracePeriodSeconds") or 0 if requested is None else requested
        return period if period >= 0 else 1

    def selectable_fields(self, obj: Object) -> dict[str, str]:
        spec, status = obj.get("spec") or {}, obj.get("status") or {}
        addresses = status.get("podIPs") or [{}]
        return {
            "spec.nodeName": spec.get("nodeName", ""),
            "spec.restartPolicy": spec.get("restartPolicy", ""),
            "spec.schedulerName": spec.get("schedulerName", ""),
            "spec.serviceAccountName": spec.get("serviceAccountName", ""),
            "spec.hostNetwork": "true" if spec.get("hostNetwork") else "false",
            "status.phase": status.get("phase", ""),
            "status.podIP": addresses[0].get("ip", ""),
            "status.nominatedNodeName": status.get("nominatedNodeName", ""),
        }


def _with_defaults(spec: Object) -> Object:
    return default_own_pod_spec(default_pod_spec(spec))


# The pods of one template have equal specs, so each rule inspects them once.
_new_spec_with_defaults: Final = edited_once_per_json(_with_defaults)
_qos_class: Final = once_per_json(qos_class)
_valid: Final = JsonCache[bool]()


def _validate_spec_once(pod: Object) -> list[Cause]:
    """Validate the spec of a pod, unless an equal one is known to be valid. The claims that
    are made for ephemeral volumes are named after the pod, so specs with such volumes are always validated."""
    spec = pod["spec"]
    text = text_of(spec)
    if _valid.get(text):
        return []
    found = list(_validate_spec(pod))
    if text and not found and not any("ephemeral" in volume for volume in spec.get("volumes") or ()):
        _valid.put(text, True)
    return found


def _validate_spec(pod: Object) -> Iterator[Cause]:
    spec = pod["spec"]
    yield from validate_pod_spec(spec, "spec", pod_name=pod["metadata"].get("name") or "", pod=True)
    for kind in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(kind) or ()):
            yield from validate_image_padding(container, f"spec.{kind}[{index}]")


def _validate_create(pod: Object) -> Iterator[Cause]:
    if pod["spec"].get("ephemeralContainers"):
        yield forbidden("spec.ephemeralContainers", "cannot be set on create")
    if pod["spec"].get("nodeName") and pod["spec"].get("schedulingGates"):
        yield forbidden("spec.nodeName", "cannot be set until all schedulingGates have been cleared")


def _validate_update(spec: Object, old: Object) -> Iterator[Cause]:
    for kind in ("containers", "initContainers"):
        if len(spec.get(kind) or ()) != len(old.get(kind) or ()):
            yield forbidden(f"spec.{kind}", "pod updates may not add or remove containers")
            return
    deadline, before = spec.get("activeDeadlineSeconds"), old.get("activeDeadlineSeconds")
    if deadline is None and before is not None:
        why = "must not update from a positive integer to nil value"
        yield causes.invalid("spec.activeDeadlineSeconds", None, why)
    elif deadline is not None and before is not None and before < deadline:
        yield causes.invalid("spec.activeDeadlineSeconds", deadline, "must be less than or equal to previous value")
        return
    yield from validate_added_tolerations(
        spec.get("tolerations") or [], old.get("tolerations") or [], "spec.tolerations"
    )
    yield from validate_removed_gates(
        spec.get("schedulingGates") or [], old.get("schedulingGates") or [], "spec.schedulingGates"
    )
    compared = _with_mutable_fields_of(spec, old)
    if compared != old:
        changes = differences(old, compared, "spec")
        yield forbidden("spec", f"pod updates may not change fields other than {_MAY_CHANGE}\n{changes}")


def _with_mutable_fields_of(spec: Object, old: Object) -> Object:
    """The new spec with the old values of its mutable fields, to find forbidden changes."""
    spec = keep(spec, old, "activeDeadlineSeconds", "tolerations", "schedulingGates")
    for kind in ("containers", "initContainers"):
        if spec.get(kind):
            pairs = zip(spec[kind], old[kind], strict=True)
            spec = put(spec, kind, [keep(container, before, "image") for container, before in pairs])
    if (old.get("terminationGracePeriodSeconds") or 0) < 0 and spec.get("terminationGracePeriodSeconds") == 1:
        spec = keep(spec, old, "terminationGracePeriodSeconds")
    if old.get("schedulingGates"):
        # While scheduling gates are set, the node selection may still be narrowed.
        wanted, before = spec.get("nodeSelector") or {}, old.get("nodeSelector") or {}
        if before.items() <= wanted.items():
            spec = keep(spec, old, "nodeSelector")
    return spec


def bind(pod: Object, binding: Object, now: str) -> Object:
    """Assign a pod to the node that a Binding names.

    Raises Invalid for a bad Binding, Conflict if the pod is assigned or being deleted.
    """
    name, target = pod["metadata"]["name"], binding.get("target") or {}
    wrong = []
    if target.get("kind") not in (None, "", "Node"):
        wrong.append(causes.not_supported("target.kind", target["kind"], ("Node", "<empty>")))
    if not target.get("name"):
        wrong.append(required("target.name"))
    if wrong:
        raise invalid(POD, name, wrong)
    if pod["metadata"].get("deletionTimestamp"):
        raise _too_late(name, f"pod {name} is being deleted, cannot be assigned to a host")
    if pod["spec"].get("nodeName"):
        raise _too_late(name, f"pod {name} is already assigned to node {quoted(pod['spec']['nodeName'])}")
    if pod["spec"].get("schedulingGates"):
        raise _too_late(name, f"pod {name} has non-empty .spec.schedulingGates")
    metadata = pod["metadata"]
    for field in ("annotations", "labels"):
        if added := (binding.get("metadata") or {}).get(field):
            metadata = put(metadata, field, {**(metadata.get(field) or {}), **added})
    status = drop(pod.get("status") or {}, "nominatedNodeName")
    scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now}
    others = [item for item in status.get("conditions") or () if item.get("type") != "PodScheduled"]
    return {
        **pod,
        "metadata": metadata,
        "spec": {**pod["spec"], "nodeName": target["name"]},
        "status": {**status, "conditions": [*others, scheduled]},
    }


def _too_late(name: str, why: str) -> Conflict:
    return Conflict(
        f'Operation cannot be fulfilled on pods/binding "{name}": {why}', details={"name": name, "kind": "pods/binding"}
    )
