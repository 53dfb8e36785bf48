"""DaemonSet: a pod on every node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

from sandpool.api.causes import Cause, invalid, not_supported, quoted, required
from sandpool.api.kinds import DAEMON_SET
from sandpool.api.resource import Object
from sandpool.kube.errors import BadRequest
from sandpool.server.kinds.copy_on_write import fill_absent, fill_empty, inside
from sandpool.server.kinds.int_or_percent import is_zero, validate_int_or_percent
from sandpool.server.kinds.workloads import (
    WorkloadStrategy,
    validate_counts,
    validate_restart_always,
    validate_selected,
    validate_selector,
    validate_template,
)

# DaemonSets counted template changes here before metadata.generation existed. Clients still read the annotation.
_GENERATION: Final = "deprecated.daemonset.template.generation"


class DaemonSetStrategy(WorkloadStrategy):
    defaults: ClassVar[Object] = {"updateStrategy": {}, "revisionHistoryLimit": 10}
    status: ClassVar[Object] = {
        "currentNumberScheduled": 0,
        "numberMisscheduled": 0,
        "desiredNumberScheduled": 0,
        "numberReady": 0,
    }

    def default_spec(self, spec: Object) -> Object:
        return inside(super().default_spec(spec), "updateStrategy", _default_strategy)

    def prepare_create(self, obj: Object) -> Object:
        return _with_template_generation(super().prepare_create(obj), max(1, _template_generation(obj)))

    def prepare_update(self, new: Object, old: Object) -> Object:
        _template_generation(new)
        moved = new["spec"].get("template") != old["spec"].get("template")
        return _with_template_generation(new, _template_generation(old) + moved)

    def validate_spec(self, spec: Object, before: Object | None) -> Iterator[Cause]:
        yield from validate_selector(spec.get("selector"), "daemonset", needed=False)
        yield from validate_selected(spec["template"], spec.get("selector"))
        yield from validate_template(spec["template"])
        yield from validate_restart_always(spec["template"], "DaemonSet")
        yield from validate_counts(spec, "minReadySeconds")
        yield from _validate_strategy(spec["updateStrategy"], "spec.updateStrategy")
        yield from validate_counts(spec, "revisionHistoryLimit")


def _template_generation(obj: Object) -> int:
    """The value of the template generation annotation, 0 if absent."""
    text = (obj["metadata"].get("annotations") or {}).get(_GENERATION, "0")
    try:
        return int(text)
    except ValueError:
        why = f"strconv.ParseInt: parsing {quoted(text)}: invalid syntax"
        kind = DAEMON_SET.kind
        raise BadRequest(f'{kind} in version "v1" cannot be handled as a {kind}: {why}') from None


def _with_template_generation(obj: Object, generation: int) -> Object:
    annotations = obj["metadata"].get("annotations") or {}
    if annotations.get(_GENERATION) == str(generation):
        return obj
    return {**obj, "metadata": {**obj["metadata"], "annotations": {**annotations, _GENERATION: str(generation)}}}


def _default_strategy(strategy: Object) -> Object:
    strategy = fill_empty(strategy, {"type": "RollingUpdate"})
    if strategy["type"] != "RollingUpdate":
        return strategy
    portions = {"maxUnavailable": 1, "maxSurge": 0}
    return inside(
        fill_absent(strategy, {"rollingUpdate": {}}), "rollingUpdate", lambda update: fill_absent(update, portions)
    )


def _validate_strategy(strategy: Object, path: str) -> Iterator[Cause]:
    if strategy["type"] == "RollingUpdate":
        unavailable, surge = strategy["rollingUpdate"]["maxUnavailable"], strategy["rollingUpdate"]["maxSurge"]
        yield from validate_int_or_percent(unavailable, f"{path}.rollingUpdate.maxUnavailable")
        yield from validate_int_or_percent(surge, f"{path}.rollingUpdate.maxSurge")
        if not is_zero(unavailable) and not is_zero(surge):
            why = "may not be set when maxUnavailable is non-zero"
            yield invalid(f"{path}.rollingUpdate.maxSurge", surge, why)
        elif is_zero(unavailable) and is_zero(surge):
            yield required(f"{path}.rollingUpdate.maxUnavailable", "cannot be 0 when maxSurge is 0")
    elif strategy["type"] != "OnDelete":
        yield not_supported(path, strategy, ("RollingUpdate", "OnDelete"))
