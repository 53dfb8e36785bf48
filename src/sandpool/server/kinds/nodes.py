"""Node: a machine that runs pods."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sandpool.api.causes import Cause, duplicate, forbidden, invalid, not_supported, required
from sandpool.api.resource import Object
from sandpool.server import names
from sandpool.server.kinds.copy_on_write import drop, fill_absent, inside
from sandpool.server.kinds.ip_addresses import read_range, validate_range
from sandpool.server.kinds.resource_requirements import default_amounts, validate_amount
from sandpool.server.kinds.scheduling import TAINT_EFFECTS
from sandpool.server.kinds.strategy import KindStrategy

_ONCE: Final = 'node updates may not change {} except from "" to valid'


class NodeStrategy(KindStrategy):
    field_labels = frozenset({"spec.unschedulable"})
    metadata_labels = frozenset({"metadata.name"})

    def default(self, obj: Object, old: Object | None = None) -> Object:
        obj = fill_absent(obj, {"spec": {}, "status": {}})
        if old is None or obj["spec"] is not old.get("spec"):
            obj = inside(obj, "spec", _default_spec)
        if old is None or obj["status"] is not old.get("status"):
            obj = inside(obj, "status", _default_status)
        return obj

    def prepare_create(self, obj: Object) -> Object:
        """Drop the fields of dynamic kubelet configuration, a removed feature."""
        obj = inside(obj, "spec", lambda spec: drop(spec, "configSource"))
        return inside(obj, "status", lambda status: drop(status, "config"))

    def prepare_update(self, new: Object, old: Object) -> Object:
        return new if old["spec"].get("configSource") else inside(new, "spec", lambda spec: drop(spec, "configSource"))

    def prepare_status_update(self, new: Object, old: Object) -> Object:
        return new if old["status"].get("config") else inside(new, "status", lambda status: drop(status, "config"))

    def validate(self, new: Object, old: Object | None) -> list[Cause]:
        found = [*_validate_spec(new["spec"]), *_validate_amounts(new["status"])]
        if old is not None:
            found += [*_validate_change(new["spec"], old["spec"]), *_validate_addresses(new["status"])]
        return found

    def validate_status(self, new: Object, old: Object) -> list[Cause]:
        return [*_validate_amounts(new["status"]), *_validate_addresses(new["status"])]

    def selectable_fields(self, obj: Object) -> dict[str, str]:
        return {"spec.unschedulable": "true" if (obj.get("spec") or {}).get("unschedulable") else "false"}


def _default_spec(spec: Object) -> Object:
    """Keep ``podCIDR``, which older clients read, equal to the first of ``podCIDRs``."""
    first, ranges = spec.get("podCIDR"), spec.get("podCIDRs") or []
    if first and (not ranges or ranges[0] != first):
        return {**spec, "podCIDRs": [first]}
    return {**spec, "podCIDR": ranges[0]} if ranges and not first else spec


def _default_status(status: Object) -> Object:
    status = inside(inside(status, "capacity", default_amounts), "allocatable", default_amounts)
    return fill_absent(status, {"allocatable": status["capacity"]}) if status.get("capacity") else status


def _validate_spec(spec: Object) -> Iterator[Cause]:
    seen: set[tuple[str, str]] = set()
    for index, taint in enumerate(spec.get("taints") or ()):
        at = f"metadata.taints[{index}]"
        key, value, effect = taint.get("key") or "", taint.get("value") or "", taint.get("effect") or ""
        yield from (invalid(f"{at}.key", key, why) for why in names.qualified_name(key))
        if wrong := names.label_value(value):
            yield invalid(f"{at}.value", value, ";".join(wrong))
        if not effect:
            yield required(f"{at}.effect")
        elif effect not in TAINT_EFFECTS:
            yield not_supported(f"{at}.effect", effect, TAINT_EFFECTS)
        if (key, effect) in seen:
            repeated = duplicate(at, taint)
            why = "taints must be unique by key and effect pair"
            yield Cause(repeated.field, repeated.reason, f"{repeated.message}: {why}")
        seen.add((key, effect))
    ranges = spec.get("podCIDRs") or []
    for index, text in enumerate(ranges):
        yield from validate_range(text, f"spec.podCIDRs[{index}]")
    if len(ranges) > 1:
        versions = [network.version for text in ranges if (network := read_range(text)) is not None]
        if len(versions) == len(ranges) and sorted(versions) != [4, 6]:
            yield invalid("spec.podCIDRs", ranges, "may specify no more than one CIDR for each IP family")


def _validate_change(spec: Object, before: Object) -> Iterator[Cause]:
    if before.get("podCIDRs") and spec.get("podCIDRs") != before["podCIDRs"]:
        yield forbidden("spec.podCIDRs", _ONCE.format("podCIDR"))
    if before.get("providerID") and spec.get("providerID") != before["providerID"]:
        yield forbidden("spec.providerID", _ONCE.format("providerID"))
    if spec.get("externalID") != before.get("externalID"):
        yield forbidden("spec.externalID", "may not be updated")


def _validate_amounts(status: Object) -> Iterator[Cause]:
    for field in ("capacity", "allocatable"):
        for name, amount in (status.get(field) or {}).items():
            yield from validate_amount(name, amount, f"status.{field}.{name}")


def _validate_addresses(status: Object) -> Iterator[Cause]:
    seen: list[Object] = []
    for index, address in enumerate(status.get("addresses") or ()):
        if address in seen:
            yield duplicate(f"status.addresses[{index}]", address)
        seen.append(address)
