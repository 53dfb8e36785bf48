"""StorageClass: a way of making volumes, chosen by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sandpool.api.causes import Cause, duplicate, immutable, invalid, not_supported, required, too_long
from sandpool.api.resource import Object
from sandpool.server import names
from sandpool.server.kinds.copy_on_write import fill_absent
from sandpool.server.kinds.strategy import KindStrategy

_RECLAIM_POLICIES: Final = ("Delete", "Retain")
_BINDING_MODES: Final = ("Immediate", "WaitForFirstConsumer")
_MOST_PARAMETERS: Final = 512
_LARGEST_PARAMETERS: Final = 256 * 1024
_FIXED: Final = ("parameters", "provisioner", "reclaimPolicy", "volumeBindingMode")


class StorageClassStrategy(KindStrategy):
    def default(self, obj: Object, old: Object | None = None) -> Object:
        return fill_absent(obj, {"reclaimPolicy": "Delete", "volumeBindingMode": "Immediate"})

    def validate(self, new: Object, old: Object | None) -> list[Cause]:
        found = list(_validate(new))
        if old is not None:
            found += [immutable(field, new.get(field)) for field in _FIXED if new.get(field) != old.get(field)]
        return found


def _validate(storage: Object) -> Iterator[Cause]:
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
    # A term that says nothing is refused even if it is the only one.
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
