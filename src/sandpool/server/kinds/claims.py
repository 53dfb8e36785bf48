"""PersistentVolumeClaim: a wish for storage, which does not change once it is made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sandpool.api.causes import Cause, forbidden, immutable, invalid, not_supported, required
from sandpool.api.quantity import parse
from sandpool.api.resource import Object
from sandpool.server import names
from sandpool.server.kinds.cow import drop, fill_absent, fill_empty, inside, put
from sandpool.server.kinds.differences import differences
from sandpool.server.kinds.kind import Cluster, KindRules
from sandpool.server.kinds.label_selectors import validate_label_selector
from sandpool.server.kinds.resources import default_amounts, default_requirements

ACCESS_MODES: Final = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")
VOLUME_MODES: Final = ("Block", "Filesystem")

_CLASS_ANNOTATION: Final = "volume.beta.kubernetes.io/storage-class"
_DEFAULT_CLASS_ANNOTATIONS: Final = (
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
)
_UPDATABLE: Final = (
    "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"
)


def default_claim_spec(spec: Object) -> Object:
    spec = fill_absent(spec, {"volumeMode": "Filesystem", "resources": {}})
    return inside(spec, "resources", default_requirements)


def _without_odd_source(spec: Object) -> Object:
    """The older of the two fields for a data source means claims and snapshots; anything else in it is ignored."""
    source = spec.get("dataSource") or {}
    known = (("", "PersistentVolumeClaim"), ("snapshot.storage.k8s.io", "VolumeSnapshot"))
    return spec if (source.get("apiGroup") or "", source.get("kind")) in known else drop(spec, "dataSource")


def _mirror_data_source(spec: Object) -> Object:
    """A data source is written in two fields; the one that is given fills the other."""
    source, reference = spec.get("dataSource"), spec.get("dataSourceRef")
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
    for field in ("dataSource", "dataSourceRef"):
        if (source := spec.get(field)) is not None:
            yield from _validate_data_source(source, f"{path}.{field}")


def _validate_data_source(source: Object, path: str) -> Iterator[Cause]:
    for field in ("name", "kind"):
        if not source.get(field):
            yield required(f"{path}.{field}")
    if not source.get("apiGroup") and source.get("kind") != "PersistentVolumeClaim":
        why = "must be 'PersistentVolumeClaim' when referencing the default apiGroup"
        yield invalid(path, source.get("kind") or "", why)
    for why in names.subdomain(source["apiGroup"]) if source.get("apiGroup") else ():
        yield invalid(f"{path}.apiGroup", source["apiGroup"], why)


def default_class(cluster: Cluster) -> str | None:
    """The storage class for claims that name none: of several marked as the default, the newest."""
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


class PersistentVolumeClaimRules(KindRules):
    def default(self, obj: Object, old: Object | None = None) -> Object:
        obj = fill_absent(obj, {"spec": {}, "status": {}})
        if old is None or obj["spec"] is not old.get("spec"):
            obj = inside(obj, "spec", default_claim_spec)
        status = fill_empty(obj["status"], {"phase": "Pending"})
        for field in ("capacity", "allocatedResources"):
            status = inside(status, field, default_amounts)
        return put(obj, "status", status)

    def admit(self, obj: Object, old: Object | None, cluster: Cluster) -> Object:
        annotations = obj["metadata"].get("annotations") or {}
        if old is not None or obj["spec"].get("storageClassName") is not None or _CLASS_ANNOTATION in annotations:
            return obj
        name = default_class(cluster)
        return inside(obj, "spec", lambda spec: put(spec, "storageClassName", name)) if name else obj

    def prepare_create(self, obj: Object) -> Object:
        spec = _mirror_data_source(_without_odd_source(obj["spec"]))
        return {**obj, "spec": spec, "status": {"phase": "Pending"}}

    def prepare_update(self, new: Object, old: Object) -> Object:
        return inside(new, "spec", _mirror_data_source)

    def validate(self, new: Object, old: Object | None) -> list[Cause]:
        if old is None:
            return list(validate_claim_spec(new["spec"], "spec"))
        if new["spec"] is old["spec"] or new["spec"] == old["spec"]:
            return []
        return [*validate_claim_spec(new["spec"], "spec"), *_validate_update(new["spec"], old)]


def _storage(spec: Object) -> str:
    amount: str = ((spec.get("resources") or {}).get("requests") or {}).get("storage") or "0"
    return amount


def _validate_update(spec: Object, old: Object) -> Iterator[Cause]:
    before = old["spec"]
    compared = spec
    # A claim is bound to a volume once, and gets a class once.
    for field in ("volumeName", "storageClassName"):
        if not before.get(field) and before.get(field) != "":
            compared = drop(compared, field)
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
