from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sandpool.api.kinds import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, STORAGE_CLASS

Cells = Callable[..., list[Any]]


def test_bound_volume_claim_has_the_capacity_of_its_volume(cells: Cells) -> None:
    obj = {
        "spec": {"volumeName": "pv1", "storageClassName": "fast", "volumeMode": "Filesystem"},
        "status": {
            "phase": "Bound",
            "accessModes": ["ReadWriteOncePod", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce"],
            "capacity": {"storage": "2Gi"},
        },
    }
    assert cells(PERSISTENT_VOLUME_CLAIM, obj) == [
        *("x", "Bound", "pv1", "2Gi", "RWO,ROX,RWX,RWOP", "fast", "<unset>", "10m", "Filesystem")
    ]


def test_unbound_volume_claim_has_neither_capacity_nor_modes(cells: Cells) -> None:
    obj = {
        "metadata": {"annotations": {"volume.beta.kubernetes.io/storage-class": "annotated"}},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Pending"},
    }
    expected = ["x", "Pending", "", "", "", "annotated", "<unset>", "10m", "<unset>"]
    assert cells(PERSISTENT_VOLUME_CLAIM, obj) == expected


def test_volume_has_capacity_and_claim(cells: Cells) -> None:
    obj = {
        "spec": {
            "accessModes": ["ReadWriteMany", "ReadWriteOnce"],
            "capacity": {"storage": "5Gi"},
            "claimRef": {"namespace": "default", "name": "pvc1"},
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "fast",
            "volumeMode": "Block",
        },
        "status": {"phase": "Bound", "reason": "why"},
    }
    assert cells(PERSISTENT_VOLUME, obj) == [
        *("x", "5Gi", "RWO,RWX", "Retain", "Bound", "default/pvc1", "fast", "<unset>", "why", "10m", "Block")
    ]
    leaving = {**obj, "metadata": {"deletionTimestamp": "2026-11-16T07:59:00Z"}}
    assert cells(PERSISTENT_VOLUME, leaving)[4] == "Terminating"


def test_storage_class_marks_the_default(cells: Cells) -> None:
    default = {
        "metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": "x/y",
        "allowVolumeExpansion": True,
    }
    assert cells(STORAGE_CLASS, default) == ["x (default)", "x/y", "Delete", "Immediate", True, "10m"]
    other = {"provisioner": "x/y", "reclaimPolicy": "Retain", "volumeBindingMode": "WaitForFirstConsumer"}
    assert cells(STORAGE_CLASS, other) == ["x", "x/y", "Retain", "WaitForFirstConsumer", False, "10m"]
