"""Classes that other objects choose by name: StorageClass, PriorityClass, RuntimeClass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from sandpool.api.causes import Cause, duplicate, forbidden, immutable, invalid, not_supported, required, too_long
from sandpool.api.kinds import PRIORITY_CLASS
from sandpool.api.resource import Object
from sandpool.kube.errors import forbidden as refuse
from sandpool.server import names
from sandpool.server.kinds.copy_on_write import fill_absent, inside
from sandpool.server.kinds.metadata import validate_labels
from sandpool.server.kinds.resource_requirements import default_amounts, validate_requirements
from sandpool.server.kinds.scheduling import validate_tolerations
from sandpool.server.kinds.strategy import ClusterReader, KindStrategy

_RECLAIM_POLICIES: Final = ("Delete", "Retain")
_BINDING_MODES: Final = ("Immediate", "WaitForFirstConsumer")
_MOST_PARAMETERS: Final = 512
_LARGEST_PARAMETERS: Final = 256 * 1024
_FIXED: Final = ("parameters", "provisioner", "reclaimPolicy", "volumeBindingMode")


class StorageClassStrategy(KindStrategy):
    def default(self, obj: Object, old: Object | None = None) -> Object:
        return fill_absent(obj, {"reclaimPolicy": "Delete", "volumeBindingMode": "Immediate"})

    def validate(self, new: Object, old: Object | None) -> list[Cause]:
        found = list(_validate_storage_class(new))
        if old is not None:
            found += [immutable(field, new.get(field)) for field in _FIXED if new.get(field) != old.get(field)]
        return found


def _validate_storage_class(storage: Object) -> Iterator[Cause]:
    provisioner = storage.get("provisioner")
    if not provisioner:
        yield required("provisioner")
    else:
        lower = provisioner.lower()
        yield from (invalid("provisioner", lower, why) for why in names.qualified_name(lower))
    yield from _validate_parameters(storage.get("parameters") or {})
    if storage["reclaimPolicy"] not in _RECLAIM_POLICIES:
        yield not_supported("reclaimPolicy", storage["reclaimPolicy"], _RECLAIM_POLICIES)
    if storage["volumeBindingMode"] not in _BINDING_MODES:
        yield not_supported("volumeBindingMode", storage["volumeBindingMode"], _BINDING_MODES)
    yield from _validate_topologies(storage.get("allowedTopologies") or [], "allowedTopologies")


def _validate_parameters(parameters: dict[str, str]) -> Iterator[Cause]:
    if len(parameters) > _MOST_PARAMETERS:
        yield too_long("parameters", _MOST_PARAMETERS)
        return
    if "" in parameters:
        yield invalid("parameters", "", "field can not be empty.")
    if sum(len(key.encode()) + len(value.encode()) for key, value in parameters.items()) > _LARGEST_PARAMETERS:
        yield too_long("parameters", _LARGEST_PARAMETERS)


def _validate_topologies(terms: list[Object], path: str) -> Iterator[Cause]:
    # An empty term is refused even if it is the only one.
    seen: list[dict[str, set[str]]] = [{}]
    for index, term in enumerate(terms):
        at, labels = f"{path}[{index}].matchLabelExpressions", dict[str, set[str]]()
        for position, requirement in enumerate(term.get("matchLabelExpressions") or ()):
            key, values = requirement.get("key") or "", requirement.get("values") or []
            yield from _validate_requirement(key, values, f"{at}[{position}]")
            if key in labels:
                yield duplicate(f"{at}[{position}].key", key)
            labels[key] = set(values)
        if labels in seen:
            yield duplicate(at, "")
        seen.append(labels)


def _validate_requirement(key: str, values: list[str], path: str) -> Iterator[Cause]:
    if not values:
        yield required(f"{path}.values")
    for index, value in enumerate(values):
        if value in values[:index]:
            yield duplicate(f"{path}.values[{index}]", value)
    yield from (invalid(f"{path}.key", key, why) for why in names.qualified_name(key))


_HIGHEST_PRIORITY: Final = 1_000_000_000
_SYSTEM_PRIORITIES: Final = {"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}


class PriorityClassStrategy(KindStrategy):
    spec_generation = True

    def default(self, obj: Object, old: Object | None = None) -> Object:
        return fill_absent(obj, {"preemptionPolicy": "PreemptLowerPriority", "value": 0})

    def admit(self, obj: Object, old: Object | None, cluster: ClusterReader) -> Object:
        """Refuse a second class with ``globalDefault``."""
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
        return False  # all fields that count are immutable


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


_IDENTITY: Final = ("key", "operator", "value", "effect")


class RuntimeClassStrategy(KindStrategy):
    allow_create_on_update = True
    allow_unconditional_update = False

    def default(self, obj: Object, old: Object | None = None) -> Object:
        return inside(obj, "overhead", lambda overhead: inside(overhead, "podFixed", default_amounts))

    def validate(self, new: Object, old: Object | None) -> list[Cause]:
        found = list(_validate_runtime_class(new))
        if old is not None and new.get("handler") != old.get("handler"):
            found.append(immutable("handler", new.get("handler") or ""))
        return found


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
    tolerations = scheduling.get("tolerations") or []
    yield from validate_tolerations(tolerations, "scheduling.tolerations")
    seen: list[list[Any]] = []
    for index, toleration in enumerate(tolerations):
        identity = [toleration.get(field) or "" for field in _IDENTITY]
        if identity in seen:
            yield duplicate(f"scheduling.tolerations[{index}]", toleration)
        seen.append(identity)
