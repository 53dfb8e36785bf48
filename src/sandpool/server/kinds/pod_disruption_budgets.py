"""PodDisruptionBudget: how many pods may be evicted at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from sandpool.api.causes import Cause, invalid, not_supported
from sandpool.api.resource import Object
from sandpool.server.kinds.conditions import validate_conditions
from sandpool.server.kinds.copy_on_write import fill_absent
from sandpool.server.kinds.int_or_percent import validate_int_or_percent
from sandpool.server.kinds.label_selectors import validate_label_selector
from sandpool.server.kinds.strategy import KindStrategy

_EVICTION_POLICIES: Final = ("AlwaysAllow", "IfHealthyBudget")
_COUNTS: Final = ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods")
_NO_STATUS: Final = dict.fromkeys(_COUNTS, 0)


class PodDisruptionBudgetStrategy(KindStrategy):
    spec_generation = True
    allow_unconditional_update = False

    def default(self, obj: Object, old: Object | None = None) -> Object:
        return fill_absent(obj, {"spec": {}})

    def prepare_create(self, obj: Object) -> Object:
        return {**obj, "status": _NO_STATUS}

    def validate(self, new: Object, old: Object | None) -> list[Cause]:
        return list(_validate_spec(new["spec"]))

    def validate_status(self, new: Object, old: Object) -> list[Cause]:
        status = new.get("status") or {}
        found = list(validate_conditions(status.get("conditions") or [], "status.conditions"))
        return found + [
            invalid(f"status.{field}", status[field], "must be greater than or equal to 0")
            for field in _COUNTS
            if (status.get(field) or 0) < 0
        ]


def _validate_spec(spec: Object) -> Iterator[Cause]:
    portions: dict[str, Any] = {
        field: spec[field] for field in ("minAvailable", "maxUnavailable") if spec.get(field) is not None
    }
    if len(portions) == 2:
        yield invalid("spec", spec, "minAvailable and maxUnavailable cannot be both set")
    for field, value in portions.items():
        yield from validate_int_or_percent(value, f"spec.{field}")
    if (selector := spec.get("selector")) is not None:
        yield from validate_label_selector(selector, "spec.selector")
    policy = spec.get("unhealthyPodEvictionPolicy")
    if policy is not None and policy not in _EVICTION_POLICIES:
        yield not_supported("spec.unhealthyPodEvictionPolicy", policy, _EVICTION_POLICIES)
