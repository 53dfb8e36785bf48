"""RuntimeClass, StorageClass and PriorityClass: ways of treating pods and volumes, chosen by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sandpool.api.causes import Cause, forbidden, immutable, invalid, not_supported, required
from sandpool.api.kinds import PRIORITY_CLASS
from sandpool.api.resource import Object
from sandpool.kube.errors import forbidden as refuse
from sandpool.server import names
from sandpool.server.kinds.cow import fill_absent, inside
from sandpool.server.kinds.kind import Cluster, KindRules
from sandpool.server.kinds.metadata import validate_labels
from sandpool.server.kinds.resources import default_amounts, validate_requirements
from sandpool.server.kinds.scheduling import validate_tolerations

_HIGHEST_PRIORITY: Final = 1_000_000_000
_SYSTEM_PRIORITIES: Final = {"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}
_RECLAIM_POLICIES: Final = ("Delete", "Retain")
_BINDING_MODES: Final = ("Immediate", "WaitForFirstConsumer")


class RuntimeClassRules(KindRules):
    allow_create_on_update = True
    allow_unconditional_update = False

    def default(self, obj: Object, old: Object | None = None) -> Object:
        return inside(obj, "overhead", lambda overhead: inside(overhead, "podFixed", default_amounts))

    def validate(self, new: Object, old: Object | None) -> list[Cause]:
        if old is not None:
            changed = new.get("handler") != old.get("handler")
            return [immutable("handler", new.get("handler"))] if changed else []
        return list(_validate_runtime_class(new))


def _validate_runtime_class(runtime: Object) -> Iterator[Cause]:
    handler = runtime.get("handler")
    if not handler:
        yield required("handler")
    else:
        yield from (invalid("handler", handler, why) for why in names.label(handler))
    fixed = (runtime.get("overhead") or {}).get("podFixed")
    if fixed:
        yield from validate_requirements({"limits": fixed}, "overhead")
    scheduling = runtime.get("scheduling") or {}
    yield from validate_labels(scheduling.get("nodeSelector") or {}, "scheduling.nodeSelector")
    yield from validate_tolerations(scheduling.get("tolerations") or [], "scheduling.tolerations")


class StorageClassRules(KindRules):
    def default(self, obj: Object, old: Object | None = None) -> Object:
        return fill_absent(obj, {"reclaimPolicy": "Delete", "volumeBindingMode": "Immediate"})

    def validate(self, new: Object, old: Object | None) -> list[Cause]:
        if old is None:
            return list(_validate_storage_class(new))
        fields = ("parameters", "provisioner", "reclaimPolicy", "volumeBindingMode")
        return [immutable(field, new.get(field)) for field in fields if new.get(field) != old.get(field)]


def _validate_storage_class(storage: Object) -> Iterator[Cause]:
    provisioner = storage.get("provisioner")
    if not provisioner:
        yield required("provisioner")
    else:
        yield from (invalid("provisioner", provisioner, why) for why in names.qualified_name(provisioner.lower()))
    if storage["reclaimPolicy"] not in _RECLAIM_POLICIES:
        yield not_supported("reclaimPolicy", storage["reclaimPolicy"], _RECLAIM_POLICIES)
    if storage["volumeBindingMode"] not in _BINDING_MODES:
        yield not_supported("volumeBindingMode", storage["volumeBindingMode"], _BINDING_MODES)


class PriorityClassRules(KindRules):
    spec_generation = True

    def default(self, obj: Object, old: Object | None = None) -> Object:
        return fill_absent(obj, {"preemptionPolicy": "PreemptLowerPriority", "value": 0})

    def admit(self, obj: Object, old: Object | None, cluster: Cluster) -> Object:
        """There is one default at most."""
        if obj.get("globalDefault") and not (old or {}).get("globalDefault"):
            for other in cluster.objects(PRIORITY_CLASS.group_resource):
                name = other["metadata"]["name"]
                if other.get("globalDefault") and name != obj["metadata"].get("name"):
                    why = f"PriorityClass {name} is already marked as default. Only one default can exist"
                    raise refuse(PRIORITY_CLASS, obj["metadata"].get("name") or "", why)
        return obj

    def validate(self, new: Object, old: Object | None) -> list[Cause]:
        if old is None:
            return list(_validate_priority_class(new))
        found = []
        if new.get("value") != old.get("value"):
            found.append(forbidden("value", "may not be changed in an update."))
        if new.get("preemptionPolicy") != old.get("preemptionPolicy"):
            found.append(immutable("preemptionPolicy", new.get("preemptionPolicy")))
        return found

    def generation_moves(self, new: Object, old: Object) -> bool:
        return False  # nothing that would count can change


def _validate_priority_class(priority: Object) -> Iterator[Cause]:
    name, value = priority["metadata"].get("name") or "", priority["value"]
    if name.startswith("system-"):
        if name not in _SYSTEM_PRIORITIES:
            error = f"{name} is not a known system priority class"
        elif value != _SYSTEM_PRIORITIES[name]:
            error = f"value of {name} PriorityClass must be {_SYSTEM_PRIORITIES[name]}"
        else:
            error = ""
        if error:
            why = f"priority class names with 'system-' prefix are reserved for system use only. error: {error}"
            yield forbidden("metadata.name", why)
    elif value > _HIGHEST_PRIORITY:
        yield forbidden("value", f"maximum allowed value of a user defined priority is {_HIGHEST_PRIORITY}")
    if priority["preemptionPolicy"] not in ("PreemptLowerPriority", "Never"):
        yield not_supported("preemptionPolicy", priority["preemptionPolicy"], ("PreemptLowerPriority", "Never"))
