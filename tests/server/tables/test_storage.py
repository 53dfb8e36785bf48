from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sandpool.api.kinds import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, STORAGE_CLASS

Cells = Callable[..., list[Any]]


def test_a_bound_claim_shows_what_its_volume_gives(cells: Cells) -> None:
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


def test_a_claim_without_a_volume_shows_neither_size_nor_modes(cells: Cells) -> None:
    obj = {
        "metadata": {"annotations": {"volume.beta.kubernetes.io/storage-class": "annotated"}},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Pending"},
    }
    expected = ["x", "Pending", "", "", "", "annotated", "<unset>", "10m", "<unset>"]
    assert cells(PERSISTENT_VOLUME_CLAIM, obj) == expected


def test_volume(cells: Cells) -> None:
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


def test_storage_class(cells: Cells) -> None:
    default = {
        "metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": "x/y",
        "allowVolumeExpansion": True,
    }
    assert cells(STORAGE_CLASS, default) == ["x (default)", "x/y", "Delete", "Immediate", True, "10m"]
    other = {"provisioner": "x/y", "reclaimPolicy": "Retain", "volumeBindingMode": "WaitForFirstConsumer"}
    assert cells(STORAGE_CLASS, other) == ["x", "x/y", "Retain", "WaitForFirstConsumer", False, "10m"]
