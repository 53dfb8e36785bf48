"""Printers of PersistentVolumes, PersistentVolumeClaims and StorageClasses."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from sandpool.api.resource import Object
from sandpool.server.tables.printer import AGE, NAME, UNSET, Printer, TableColumn, age_of, name_of, value_at, wide

_ACCESS_MODES = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}
_CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"
_DEFAULT_CLASS_ANNOTATIONS = (
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
)


def _access_modes(modes: Iterable[str] | None) -> str:
    wanted = set(modes or ())
    return ",".join(short for mode, short in _ACCESS_MODES.items() if mode in wanted)


def _phase(obj: Object) -> str:
    return "Terminating" if value_at(obj, "metadata", "deletionTimestamp") else value_at(obj, "status", "phase") or ""


def _storage_class_name(obj: Object) -> str:
    annotations = value_at(obj, "metadata", "annotations") or {}
    return annotations.get(_CLASS_ANNOTATION) or value_at(obj, "spec", "storageClassName") or ""


def _attributes_class(obj: Object) -> str:
    name = value_at(obj, "spec", "volumeAttributesClassName")
    return UNSET if name is None else name


def _volume_mode(obj: Object) -> str:
    return value_at(obj, "spec", "volumeMode") or UNSET


def _claim(obj: Object, now: datetime) -> list[Any]:
    volume = value_at(obj, "spec", "volumeName") or ""
    capacity = modes = ""  # unknown until the claim is bound
    if volume:
        capacity = str(value_at(obj, "status", "capacity", "storage") or "0")
        modes = _access_modes(value_at(obj, "status", "accessModes"))
    return [
        name_of(obj),
        _phase(obj),
        volume,
        capacity,
        modes,
        _storage_class_name(obj),
        _attributes_class(obj),
        age_of(obj, now),
        _volume_mode(obj),
    ]


def _volume(obj: Object, now: datetime) -> list[Any]:
    claim = value_at(obj, "spec", "claimRef")
    return [
        name_of(obj),
        str(value_at(obj, "spec", "capacity", "storage") or "0"),
        _access_modes(value_at(obj, "spec", "accessModes")),
        value_at(obj, "spec", "persistentVolumeReclaimPolicy") or "",
        _phase(obj),
        f"{claim.get('namespace') or ''}/{claim.get('name') or ''}" if claim else "",
        _storage_class_name(obj),
        _attributes_class(obj),
        value_at(obj, "status", "reason") or "",
        age_of(obj, now),
        _volume_mode(obj),
    ]


def _storage_class(obj: Object, now: datetime) -> list[Any]:
    annotations = value_at(obj, "metadata", "annotations") or {}
    default = any(annotations.get(key) == "true" for key in _DEFAULT_CLASS_ANNOTATIONS)
    return [
        f"{name_of(obj)} (default)" if default else name_of(obj),
        obj.get("provisioner") or "",
        obj.get("reclaimPolicy") or "Delete",
        obj.get("volumeBindingMode") or "Immediate",
        bool(obj.get("allowVolumeExpansion")),
        age_of(obj, now),
    ]


PRINTERS = {
    "persistentvolumeclaims": Printer(
        (
            NAME,
            TableColumn("Status"),
            TableColumn("Volume"),
            TableColumn("Capacity"),
            TableColumn("Access Modes"),
            TableColumn("StorageClass"),
            TableColumn("VolumeAttributesClass"),
            AGE,
            wide("VolumeMode"),
        ),
        _claim,
    ),
    "persistentvolumes": Printer(
        (
            NAME,
            TableColumn("Capacity"),
            TableColumn("Access Modes"),
            TableColumn("Reclaim Policy"),
            TableColumn("Status"),
            TableColumn("Claim"),
            TableColumn("StorageClass"),
            TableColumn("VolumeAttributesClass"),
            TableColumn("Reason"),
            AGE,
            wide("VolumeMode"),
        ),
        _volume,
    ),
    "storageclasses.storage.k8s.io": Printer(
        (
            NAME,
            TableColumn("Provisioner"),
            TableColumn("ReclaimPolicy"),
            TableColumn("VolumeBindingMode"),
            TableColumn("AllowVolumeExpansion"),
            AGE,
        ),
        _storage_class,
    ),
}
