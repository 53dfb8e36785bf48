"""The requirements of a pod on a node, as a value. Pods with equal requirements are placed alike."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import orjson

from sandpool.api.quantity import parse
from sandpool.api.resource import Key, Object, SharedObject

PODS: Final = "pods"
# Only requirements count; this scheduler ignores preferences.
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_RATHER: Final = "ScheduleAnyway"

# Amounts by resource, in billionths.
Amounts = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class PodRequirements:
    """Hashable. ``selection`` is the node selection as JSON: equal texts select equally. ``claims`` are those whose
    volumes the pod must be near to."""

    requests: Amounts
    runtime_class: str
    selection: bytes
    claims: tuple[Key, ...] = ()

    @property
    def choice(self) -> Object:
        return _choice(self.selection)


@lru_cache(maxsize=1024)
def _choice(selection: bytes) -> Object:
    found: Object = orjson.loads(selection)
    return found


def requirements_of(pod: SharedObject) -> PodRequirements:
    spec = pod["spec"]
    affinity = spec.get("affinity") or {}
    others = [kind for kind in ("podAffinity", "podAntiAffinity") if (affinity.get(kind) or {}).get(_REQUIRED)]
    if any(each.get("whenUnsatisfiable") != _RATHER for each in spec.get("topologySpreadConstraints") or ()):
        others.append("topologySpreadConstraints")
    selection = {
        "nodeSelector": spec.get("nodeSelector") or {},
        "nodeAffinity": (affinity.get("nodeAffinity") or {}).get(_REQUIRED) or {},
        "tolerations": spec.get("tolerations") or [],
        "others": others,
    }
    encoded = orjson.dumps(selection, option=orjson.OPT_SORT_KEYS)
    return PodRequirements(requests_of(spec), spec.get("runtimeClassName") or "", encoded, _claims(pod))


def _claims(pod: SharedObject) -> tuple[Key, ...]:
    sources = (each.get("persistentVolumeClaim") for each in pod["spec"].get("volumes") or ())
    named = {source["claimName"]: None for source in sources if source}
    return tuple(Key(pod["metadata"].get("namespace") or "", name) for name in named)


def requests_of(spec: Object) -> Amounts:
    """Return the pod's requests as a scheduler counts them: concurrent containers add up, of sequential ones the
    largest counts."""
    together = _sum(_amounts(each) for each in spec.get("containers") or ())
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in spec.get("initContainers") or ():
        own = _amounts(container)
        if container.get("restartPolicy") == "Always":
            sidecars = _sum((sidecars, own))
            peak = _max(peak, sidecars)
        else:
            peak = _max(peak, _sum((sidecars, own)))
    overhead = {name: parse(amount).billionths for name, amount in (spec.get("overhead") or {}).items()}
    total = _sum((_max(_sum((together, sidecars)), peak), overhead, {PODS: parse(1).billionths}))
    return tuple(sorted((name, amount) for name, amount in total.items() if amount))


def _amounts(container: Object) -> dict[str, int]:
    requests = (container.get("resources") or {}).get("requests") or {}
    return {name: parse(amount).billionths for name, amount in requests.items()}


def _sum(parts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for name, amount in part.items():
            total[name] = total.get(name, 0) + amount
    return total


def _max(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in one.keys() | other.keys()}
