"""PersistentVolumeClaim: a request for storage, mostly immutable after creation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sandpool.api.causes import Cause, forbidden, immutable, invalid, not_supported, required
from sandpool.api.kinds import PERSISTENT_VOLUME_CLAIM, STORAGE_CLASS
from sandpool.api.quantity import parse
from sandpool.api.resource import Object
from sandpool.kube.errors import forbidden as refuse
from sandpool.server import names
from sandpool.server.kinds.copy_on_write import drop, fill_absent, fill_empty, inside, put
from sandpool.server.kinds.differences import differences
from sandpool.server.kinds.label_selectors import validate_label_selector
from sandpool.server.kinds.resource_requirements import default_amounts, default_requirements
from sandpool.server.kinds.strategy import ClusterReader, KindStrategy

ACCESS_MODES: Final = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")
VOLUME_MODES: Final = ("Block", "Filesystem")

_CLASS_ANNOTATION: Final = "volume.beta.kubernetes.io/storage-class"
_DEFAULT_CLASS_ANNOTATIONS: Final = (
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
)
_OLD_SOURCES: Final = (("", "PersistentVolumeClaim"), ("snapshot.storage.k8s.io", "VolumeSnapshot"))
_REFERENCE: Final = ("apiGroup", "kind", "name")
_RESIZE_STATUSES: Final = (
    "ControllerResizeInProgress",
    "ControllerResizeInfeasible",
    "NodeResizeInProgress",
    "NodeResizeInfeasible",
    "NodeResizePending",
)
_UPDATABLE: Final = (
    "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"
)


def default_claim_spec(spec: Object) -> Object:
    spec = fill_absent(spec, {"volumeMode": "Filesystem", "resources": {}})
    return inside(spec, "resources", default_requirements)


def _normalize_data_source(spec: Object, before: Object | None) -> Object:
    """Copy the data source between ``dataSource`` and ``dataSourceRef``, whichever of them is set."""
    in_use = before is not None and (before.get("dataSource") or before.get("dataSourceRef"))
    reference = spec.get("dataSourceRef")
    if reference and reference.get("namespace") and not (before or {}).get("dataSourceRef"):
        # Sources in other namespaces need a feature gate that is off by default in Kubernetes.
        spec, reference = drop(spec, "dataSourceRef"), None
    if not in_use and not reference and spec.get("dataSource"):
        # dataSource, the older field, allows only claims and snapshots; Kubernetes drops anything else in it.
        source = spec["dataSource"]
        if (source.get("apiGroup") or "", source.get("kind")) not in _OLD_SOURCES:
            spec = drop(spec, "dataSource")
    source = spec.get("dataSource")
    if source and not reference:
        return {**spec, "dataSourceRef": source}
    if reference and not source and not reference.get("namespace"):
        return {**spec, "dataSource": drop(reference, "namespace")}
    return spec


def validate_claim_spec(spec: Object, path: str) -> Iterator[Cause]:
    modes = spec.get("accessModes") or []
    if not modes:
        yield required(f"{path}.accessModes", "at least 1 access mode is required")
    if (selector := spec.get("selector")) is not None:
        yield from validate_label_selector(selector, f"{path}.selector")
    for mode in modes:
        if mode not in ACCESS_MODES:
            yield not_supported(f"{path}.accessModes", mode, ACCESS_MODES)
    if "ReadWriteOncePod" in modes and any(mode in ACCESS_MODES[:3] for mode in modes):
        yield forbidden(f"{path}.accessModes", "may not use ReadWriteOncePod with other access modes")
    size, at = ((spec.get("resources") or {}).get("requests") or {}).get("storage"), f"{path}.resources[storage]"
    if size is None:
        yield required(at)
    elif parse(size).billionths <= 0:
        yield invalid(at, size, "must be greater than zero")
    for field in ("storageClassName", "volumeAttributesClassName"):
        if spec.get(field):
            yield from (invalid(f"{path}.{field}", spec[field], why) for why in names.subdomain(spec[field]))
    if spec.get("volumeMode") is not None and spec["volumeMode"] not in VOLUME_MODES:
        yield not_supported(f"{path}.volumeMode", spec["volumeMode"], VOLUME_MODES)
    yield from _validate_data_sources(spec, path)


def _validate_data_sources(spec: Object, path: str) -> Iterator[Cause]:
    source, reference = spec.get("dataSource"), spec.get("dataSourceRef")
    if source is not None:
        yield from _validate_data_source(source, f"{path}.dataSource")
    if reference is None:
        return
    yield from _validate_data_source(reference, f"{path}.dataSourceRef")
    namespace = reference.get("namespace")
    if namespace:
        yield from (invalid(f"{path}.dataSourceRef.namespace", namespace, why) for why in names.label(namespace))
    if source is not None and namespace:
        yield invalid(path, {}, "may not be specified when dataSourceRef.namespace is specified")
    elif source is not None and any(source.get(field) != reference.get(field) for field in _REFERENCE):
        yield invalid(path, {}, "must match dataSourceRef")


def _validate_data_source(source: Object, path: str) -> Iterator[Cause]:
    for field in ("name", "kind"):
        if not source.get(field):
            yield required(f"{path}.{field}")
    if not source.get("apiGroup") and source.get("kind") != "PersistentVolumeClaim":
        why = "must be 'PersistentVolumeClaim' when referencing the default apiGroup"
        yield invalid(path, source.get("kind") or "", why)
    for why in names.subdomain(source["apiGroup"]) if source.get("apiGroup") else ():
        yield invalid(f"{path}.apiGroup", source["apiGroup"], why)


def default_class(cluster: ClusterReader) -> str | None:
    """The storage class of claims that name none: the newest class marked as default."""
    marked: list[tuple[str, str]] = [
        (storage_class["metadata"].get("creationTimestamp") or "", storage_class["metadata"]["name"])
        for storage_class in cluster.objects("storageclasses.storage.k8s.io")
        if any(
            (storage_class["metadata"].get("annotations") or {}).get(annotation) == "true"
            for annotation in _DEFAULT_CLASS_ANNOTATIONS
        )
    ]
    if not marked:
        return None
    newest = max(created for created, _ in marked)
    return min(name for created, name in marked if created == newest)


class PersistentVolumeClaimStrategy(KindStrategy):
    def default(self, obj: Object, old: Object | None = None) -> Object:
        obj = fill_absent(obj, {"spec": {}, "status": {}})
        if old is None or obj["spec"] is not old.get("spec"):
            obj = inside(obj, "spec", default_claim_spec)
        status = fill_empty(obj["status"], {"phase": "Pending"})
        for field in ("capacity", "allocatedResources"):
            status = inside(status, field, default_amounts)
        return put(obj, "status", status)

    def admit(self, obj: Object, old: Object | None, cluster: ClusterReader) -> Object:
        if old is not None:
            _check_growth(obj, old, cluster)
            return obj
        if obj["spec"].get("storageClassName") is not None or _CLASS_ANNOTATION in _annotations(obj):
            return obj
        name = default_class(cluster)
        return inside(obj, "spec", lambda spec: put(spec, "storageClassName", name)) if name else obj

    def prepare_create(self, obj: Object) -> Object:
        return {**obj, "spec": _normalize_data_source(obj["spec"], None), "status": {"phase": "Pending"}}

    def prepare_update(self, new: Object, old: Object) -> Object:
        return inside(new, "spec", lambda spec: _normalize_data_source(spec, old["spec"]))

    def validate(self, new: Object, old: Object | None) -> list[Cause]:
        if old is None:
            return list(validate_claim_spec(new["spec"], "spec"))
        if new["spec"] is old["spec"] or new["spec"] == old["spec"]:
            return []
        return [*validate_claim_spec(new["spec"], "spec"), *_validate_update(new, old)]

    def validate_status(self, new: Object, old: Object) -> list[Cause]:
        return list(_validate_status(new.get("status") or {}))


def _annotations(claim: Object) -> Object:
    return claim["metadata"].get("annotations") or {}


def _class_of(claim: Object) -> str:
    return _annotations(claim).get(_CLASS_ANNOTATION) or claim["spec"].get("storageClassName") or ""


def _check_growth(new: Object, old: Object, cluster: ClusterReader) -> None:
    """Refuse to grow a bound claim unless its storage class allows volume expansion."""
    bound = (old.get("status") or {}).get("phase") == "Bound"
    if not bound or parse(_storage(new["spec"])).billionths <= parse(_storage(old["spec"])).billionths:
        return
    name = _class_of(new)
    storage_class = cluster.get(STORAGE_CLASS.group_resource, None, name) if name and name == _class_of(old) else None
    if not (storage_class or {}).get("allowVolumeExpansion"):
        why = (
            "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must "
            "support resize"
        )
        raise refuse(PERSISTENT_VOLUME_CLAIM, new["metadata"]["name"], why)


def _storage(spec: Object) -> str:
    amount: str = ((spec.get("resources") or {}).get("requests") or {}).get("storage") or "0"
    return amount


def _validate_update(new: Object, old: Object) -> Iterator[Cause]:
    spec, before = new["spec"], old["spec"]
    compared = spec
    # The volume and the class of a claim can each be set once.
    if not before.get("volumeName"):
        compared = drop(compared, "volumeName")
    if before.get("storageClassName") is None and _class_of(old) in ("", spec.get("storageClassName")):
        compared = drop(compared, "storageClassName")
    if (old.get("status") or {}).get("phase") == "Bound":
        size = _storage(before)
        compared = inside(
            compared, "resources", lambda wanted: inside(wanted, "requests", lambda it: put(it, "storage", size))
        )
        compared = drop(compared, "volumeAttributesClassName")
        before = drop(before, "volumeAttributesClassName")
    if compared != before:
        yield forbidden("spec", f"{_UPDATABLE}\n{differences(before, compared)}")
    capacity = ((old.get("status") or {}).get("capacity") or {}).get("storage") or "0"
    size_now = parse(_storage(spec)).billionths
    if size_now < parse(_storage(old["spec"])).billionths and size_now <= parse(capacity).billionths:
        yield forbidden("spec.resources.requests.storage", "field can not be less than status.capacity")
    if spec.get("volumeMode") != old["spec"].get("volumeMode"):
        yield immutable("volumeMode", spec.get("volumeMode"))


def _validate_status(status: Object) -> Iterator[Cause]:
    for name, amount in (status.get("capacity") or {}).items():
        yield from _validate_amount(amount, f"status.capacity[{name}]")
    path = "status.allocatedResourceStatuses"
    for name, state in (status.get("allocatedResourceStatuses") or {}).items():
        yield from _validate_resource_name(name, path)
        if state not in _RESIZE_STATUSES:
            yield not_supported(path, name, _RESIZE_STATUSES)
    path = "status.allocatedResources"
    for name, amount in (status.get("allocatedResources") or {}).items():
        wrong = list(_validate_resource_name(name, path))
        yield from wrong or _validate_amount(amount, f"{path}[{name}]")


def _validate_amount(amount: str, path: str) -> Iterator[Cause]:
    billionths = parse(amount).billionths
    if billionths < 0:
        yield invalid(path, -(-billionths // 10**9), "must be a valid resource quantity")


def _validate_resource_name(name: str, path: str) -> Iterator[Cause]:
    wrong = [invalid(path, name, why) for why in names.qualified_name(name)]
    yield from wrong
    if not wrong and ("/" not in name or "kubernetes.io/" in name) and name != "storage":
        yield not_supported(path, name, ("storage",))
