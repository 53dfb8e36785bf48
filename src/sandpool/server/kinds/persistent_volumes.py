"""PersistentVolume: storage that exists independently of a pod."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from posixpath import normpath
from typing import Final

from sandpool.api.causes import Cause, forbidden, immutable, invalid, not_supported, required, too_long
from sandpool.api.quantity import parse
from sandpool.api.resource import Object
from sandpool.server import names
from sandpool.server.kinds.copy_on_write import drop, fill_absent, fill_empty, inside
from sandpool.server.kinds.differences import differences
from sandpool.server.kinds.persistent_volume_claims import ACCESS_MODES, VOLUME_MODES
from sandpool.server.kinds.resource_requirements import default_amounts
from sandpool.server.kinds.scheduling import validate_node_selector
from sandpool.server.kinds.strategy import KindStrategy
from sandpool.server.kinds.volumes import validate_host_path, validate_nfs

_RECLAIM_POLICIES: Final = ("Delete", "Recycle", "Retain")
# All other fields of a spec are volume sources.
_NOT_THE_SOURCE: Final = frozenset(
    {
        "accessModes",
        "capacity",
        "claimRef",
        "mountOptions",
        "nodeAffinity",
        "persistentVolumeReclaimPolicy",
        "storageClassName",
        "volumeAttributesClassName",
        "volumeMode",
    }
)


# Volume sources that support the mount options annotation. It is refused for all others.
_ANNOTATED: Final = frozenset(
    {
        "awsElasticBlockStore",
        "azureDisk",
        "azureFile",
        "cephfs",
        "cinder",
        "gcePersistentDisk",
        "glusterfs",
        "iscsi",
        "nfs",
        "photonPersistentDisk",
        "quobyte",
        "rbd",
        "vsphereVolume",
    }
)
_MOUNT_OPTIONS: Final = "volume.beta.kubernetes.io/mount-options"
_SECRETS: Final = (
    "controllerPublishSecretRef",
    "controllerExpandSecretRef",
    "nodePublishSecretRef",
    "nodeExpandSecretRef",
)


class PersistentVolumeStrategy(KindStrategy):
    def default(self, obj: Object, old: Object | None = None) -> Object:
        obj = fill_absent(obj, {"spec": {}, "status": {}})
        if old is None or obj["spec"] is not old.get("spec"):
            obj = inside(obj, "spec", _default_spec)
        return inside(obj, "status", lambda status: fill_empty(status, {"phase": "Pending"}))

    def prepare_create(self, obj: Object) -> Object:
        return {
            **obj,
            "status": {"phase": "Pending", "lastPhaseTransitionTime": obj["metadata"].get("creationTimestamp")},
        }

    def prepare_status_update(self, new: Object, old: Object) -> Object:
        since = (old.get("status") or {}).get("lastPhaseTransitionTime")
        if since is None:
            return new
        return inside(new, "status", lambda status: fill_absent(status, {"lastPhaseTransitionTime": since}))

    def validate(self, new: Object, old: Object | None) -> list[Cause]:
        found = [*_validate_spec(new["spec"]), *_validate_mount_options(new)]
        return found if old is None else [*found, *_validate_change(new["spec"], old["spec"])]


def _default_spec(spec: Object) -> Object:
    spec = fill_empty(spec, {"persistentVolumeReclaimPolicy": "Retain"})
    spec = fill_absent(spec, {"volumeMode": "Filesystem"})
    spec = inside(spec, "hostPath", lambda source: fill_absent(source, {"type": ""}))
    return inside(spec, "capacity", default_amounts)


def _validate_spec(spec: Object) -> Iterator[Cause]:
    modes, capacity = spec.get("accessModes") or [], spec.get("capacity") or {}
    if not modes:
        yield required("spec.accessModes")
    for mode in modes:
        if mode not in ACCESS_MODES:
            yield not_supported("spec.accessModes", mode, ACCESS_MODES)
    if "ReadWriteOncePod" in modes and any(mode in ACCESS_MODES[:3] for mode in modes):
        yield forbidden("spec.accessModes", "may not use ReadWriteOncePod with other access modes")
    if not capacity:
        yield required("spec.capacity")
    if capacity.keys() != {"storage"}:
        yield not_supported("spec.capacity", capacity or None, ("storage",))
    for name, amount in capacity.items():
        if parse(amount).billionths <= 0:
            yield invalid(f"spec.capacity[{name}]", amount, "must be greater than zero")
    policy = spec.get("persistentVolumeReclaimPolicy")
    if policy not in _RECLAIM_POLICIES:
        yield not_supported("spec.persistentVolumeReclaimPolicy", policy, _RECLAIM_POLICIES)
    yield from _validate_source(spec)
    if spec.get("storageClassName"):
        name = spec["storageClassName"]
        yield from (invalid("spec.storageClassName", name, why) for why in names.subdomain(name))
    if spec.get("volumeMode") not in VOLUME_MODES:
        yield not_supported("spec.volumeMode", spec.get("volumeMode"), VOLUME_MODES)
    if (attributes := spec.get("volumeAttributesClassName")) is not None:
        yield from _validate_attributes_class(attributes, spec)


def _source(spec: Object) -> Object:
    return {key: value for key, value in spec.items() if key not in _NOT_THE_SOURCE and value is not None}


def _validate_source(spec: Object) -> Iterator[Cause]:
    """Validate the volume source. In-tree cloud provider sources, which CSI replaced, are not validated further."""
    affinity = spec.get("nodeAffinity")
    if affinity is not None and affinity.get("required") is None:
        yield required("spec.nodeAffinity.required", "must specify required node constraints")
    elif affinity is not None:
        yield from validate_node_selector(affinity["required"], "spec.nodeAffinity.required")
    kinds = list(_source(spec))
    if not kinds:
        yield required("spec", "must specify a volume type")
    # In the order of kube-apiserver: of several sources, hostPath is validated first and csi last.
    kinds.sort(key=lambda kind: (kind != "hostPath", kind == "csi"))
    for kind in kinds[1:]:
        yield forbidden(f"spec.{kind}", "may not specify more than 1 volume type")
    for kind in kinds[:1]:
        if check := _CHECKS.get(kind):
            yield from check(spec[kind], f"spec.{kind}")
    if kinds[:1] == ["local"] and affinity is None:
        yield required("spec.nodeAffinity", "Local volume requires node affinity")
    root = normpath((spec.get("hostPath") or {}).get("path") or ".").strip("/") == ""
    if root and spec.get("persistentVolumeReclaimPolicy") == "Recycle":
        yield forbidden("spec.persistentVolumeReclaimPolicy", "may not be 'recycle' for a hostPath mount of '/'")


def _validate_local(source: Object, path: str) -> Iterator[Cause]:
    if not source.get("path"):
        yield required(f"{path}.path")
    elif ".." in source["path"].split("/"):
        yield invalid(f"{path}.path", source["path"], "must not contain '..'")


def _validate_csi(source: Object, path: str) -> Iterator[Cause]:
    driver = source.get("driver") or ""
    if not driver:
        yield required(f"{path}.driver")
    else:
        yield from (invalid(f"{path}.driver", driver, why) for why in names.subdomain(driver.lower()))
    if len(driver.encode()) > names.LABEL_LENGTH:
        yield too_long(f"{path}.driver", names.LABEL_LENGTH)
    if not source.get("volumeHandle"):
        yield required(f"{path}.volumeHandle")
    for field in _SECRETS:
        if (reference := source.get(field)) is not None:
            yield from (required(f"{path}.{field}.{key}") for key in ("name", "namespace") if not reference.get(key))


_CHECKS: Final[dict[str, Callable[[Object, str], Iterator[Cause]]]] = {
    "hostPath": validate_host_path,
    "nfs": validate_nfs,
    "local": _validate_local,
    "csi": _validate_csi,
}


def _validate_attributes_class(name: str, spec: Object) -> Iterator[Cause]:
    if not name:
        yield required("spec.volumeAttributesClassName", "an empty string is disallowed")
    else:
        yield from (invalid("spec.volumeAttributesClassName", name, why) for why in names.subdomain(name))
    if spec.get("csi") is None:
        yield required("spec.csi", "has to be specified when using volumeAttributesClassName")


def _validate_mount_options(volume: Object) -> Iterator[Cause]:
    if (
        _MOUNT_OPTIONS in (volume["metadata"].get("annotations") or {})
        and not _ANNOTATED & _source(volume["spec"]).keys()
    ):
        path = f"metadata.annotations.{_MOUNT_OPTIONS}"
        yield forbidden(path, "may not specify mount options for this volume type")


def _validate_change(spec: Object, before: Object) -> Iterator[Cause]:
    source, was = _source(spec), _source(before)
    if not (was.get("csi") or {}).get("controllerExpandSecretRef"):
        # The secret for expansion may be added to volumes that were created without it.
        source = inside(source, "csi", lambda csi: drop(csi, "controllerExpandSecretRef"))
    if source != was:
        why = f"spec.persistentvolumesource is immutable after creation\n{differences(was, source)}"
        yield forbidden("spec.persistentvolumesource", why)
    if spec.get("volumeMode") != before.get("volumeMode"):
        yield immutable("volumeMode", spec.get("volumeMode"))
    affinity = before.get("nodeAffinity")
    if affinity is not None and spec.get("nodeAffinity") != affinity:
        why = "field is immutable, except for updating from beta label to GA"
        yield invalid("nodeAffinity", spec.get("nodeAffinity"), why)
    if before.get("volumeAttributesClassName") is not None and spec.get("volumeAttributesClassName") is None:
        yield forbidden("spec.volumeAttributesClassName", "update from non-nil value to nil is forbidden")
