"""PriorityClass: how much a pod matters, chosen by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sandpool.api.causes import Cause, forbidden, immutable, not_supported
from sandpool.api.kinds import PRIORITY_CLASS
from sandpool.api.resource import Object
from sandpool.kube.errors import forbidden as refuse
from sandpool.server.kinds.copy_on_write import fill_absent
from sandpool.server.kinds.strategy import ClusterReader, KindStrategy

_HIGHEST_PRIORITY: Final = 1_000_000_000
_SYSTEM_PRIORITIES: Final = {"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}


class PriorityClassStrategy(KindStrategy):
    spec_generation = True

    def default(self, obj: Object, old: Object | None = None) -> Object:
        return fill_absent(obj, {"preemptionPolicy": "PreemptLowerPriority", "value": 0})

    def admit(self, obj: Object, old: Object | None, cluster: ClusterReader) -> Object:
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

    def bumps_generation(self, new: Object, old: Object) -> bool:
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
