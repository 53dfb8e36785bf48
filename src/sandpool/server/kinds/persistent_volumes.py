"""PersistentVolume: a piece of storage that exists on its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sandpool.api.causes import Cause, forbidden, immutable, invalid, not_supported, required
from sandpool.api.quantity import parse
from sandpool.api.resource import Object
from sandpool.server import names
from sandpool.server.kinds.claims import ACCESS_MODES, VOLUME_MODES
from sandpool.server.kinds.cow import fill_absent, fill_empty, inside
from sandpool.server.kinds.differences import differences
from sandpool.server.kinds.kind import KindRules
from sandpool.server.kinds.resources import default_amounts

_RECLAIM_POLICIES: Final = ("Delete", "Recycle", "Retain")
# Everything else in a spec says what the volume is made of.
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


def _source(spec: Object) -> Object:
    return {key: value for key, value in spec.items() if key not in _NOT_THE_SOURCE}


class PersistentVolumeRules(KindRules):
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

    def validate(self, new: Object, old: Object | None) -> list[Cause]:
        spec = new["spec"]
        found = list(_validate_spec(spec))
        if old is None:
            return found
        source, before = _source(spec), _source(old["spec"])
        if source != before:
            why = f"spec.persistentvolumesource is immutable after creation\n{differences(before, source)}"
            found.append(forbidden("spec.persistentvolumesource", why))
        if spec.get("volumeMode") != old["spec"].get("volumeMode"):
            found.append(immutable("volumeMode", spec.get("volumeMode")))
        return found


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
    sources = [key for key, value in spec.items() if key not in _NOT_THE_SOURCE and value is not None]
    if not sources:
        yield required("spec", "must specify a volume type")
    yield from (forbidden(f"spec.{extra}", "may not specify more than 1 volume type") for extra in sources[1:])
    if spec.get("storageClassName"):
        name = spec["storageClassName"]
        yield from (invalid("spec.storageClassName", name, why) for why in names.subdomain(name))
    if spec.get("volumeMode") not in VOLUME_MODES:
        yield not_supported("spec.volumeMode", spec.get("volumeMode"), VOLUME_MODES)
