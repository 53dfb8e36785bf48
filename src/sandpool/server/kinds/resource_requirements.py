"""Resource requests and limits: canonical form, validation, QoS class."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from sandpool.api.causes import Cause, forbidden, invalid, not_supported, required
from sandpool.api.quantity import canonical_amount, parse
from sandpool.api.resource import Object
from sandpool.server import names
from sandpool.server.kinds.copy_on_write import inside

Amounts = Mapping[str, str]

_FOR_CONTAINERS: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
_STANDARD: Final = _FOR_CONTAINERS | {
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "persistentvolumeclaims",
    "configmaps",
    "services.nodeports",
    "services.loadbalancers",
    "storage",
    "requests.storage",
}
HUGE_PAGES: Final = "hugepages-"


def default_amounts(amounts: Object) -> Object:
    """Rewrite the amounts of a resource list in canonical form."""
    stored = {name: canonical_amount(value) for name, value in amounts.items()}
    return amounts if stored == amounts else stored


def default_requirements(requirements: Object) -> Object:
    return inside(inside(requirements, "limits", default_amounts), "requests", default_amounts)


def default_requests_to_limits(requirements: Object) -> Object:
    """Default the request of each resource to its limit."""
    limits, requests = requirements.get("limits") or {}, requirements.get("requests") or {}
    missing = {name: amount for name, amount in limits.items() if name not in requests}
    return {**requirements, "requests": {**requests, **missing}} if missing else requirements


def validate_requirements(requirements: Object, path: str, *, pod_level: bool = False) -> Iterator[Cause]:
    limits, requests = requirements.get("limits") or {}, requirements.get("requests") or {}
    for field, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            at = f"{path}.{field}[{name}]"
            yield from _validate_pod_level_name(name, at) if pod_level else _validate_container_name(name, at)
            yield from validate_amount(name, amount, at)
    for name, amount in requests.items():
        yield from _validate_request(name, amount, limits, path)
    used = {*limits, *requests}
    if any(name.startswith(HUGE_PAGES) for name in used) and not used & {"cpu", "memory"}:
        yield forbidden(path, "HugePages require cpu or memory")


def _validate_request(name: str, amount: str, limits: Amounts, path: str) -> Iterator[Cause]:
    limit = limits.get(name)
    if limit is None:
        if not _may_overcommit(name):
            yield required(f"{path}.limits", "Limit must be set for non overcommitable resources")
        return
    wanted, allowed = parse(amount).billionths, parse(limit).billionths
    if wanted != allowed and not _may_overcommit(name):
        yield invalid(f"{path}.requests", amount, f"must be equal to {name} limit of {limit}")
    elif wanted > allowed:
        yield invalid(f"{path}.requests", amount, f"must be less than or equal to {name} limit of {limit}")


def validate_amount(name: str, amount: str, path: str) -> Iterator[Cause]:
    quantity = parse(amount)
    if quantity.billionths < 0:
        yield invalid(path, amount, "must be greater than or equal to 0")
    if not _may_overcommit(name) and not name.startswith(HUGE_PAGES) and quantity.billionths % 10**9:
        yield invalid(path, amount, "must be an integer")


def validate_resource_name(name: str, path: str) -> list[Cause]:
    wrong = [invalid(path, name, why) for why in names.qualified_name(name)]
    if not wrong and "/" not in name and name not in _STANDARD and not name.startswith(HUGE_PAGES):
        wrong.append(invalid(path, name, "must be a standard resource type or fully qualified"))
    return wrong


def _validate_container_name(name: str, path: str) -> Iterator[Cause]:
    yield from validate_resource_name(name, path)
    if "/" not in name:
        if name not in _FOR_CONTAINERS and not name.startswith(HUGE_PAGES):
            yield invalid(path, name, "must be a standard resource for containers")
    elif not _is_native(name) and (name.startswith("requests.") or names.qualified_name(f"requests.{name}")):
        yield invalid(path, name, "doesn't follow extended resource name standard")


def _validate_pod_level_name(name: str, path: str) -> Iterator[Cause]:
    wrong = validate_resource_name(name, path)
    yield from wrong
    if not wrong and name not in ("cpu", "memory") and not name.startswith(HUGE_PAGES):
        yield not_supported(path, name, ("cpu", HUGE_PAGES, "memory"))


def _is_native(name: str) -> bool:
    return "/" not in name or "kubernetes.io/" in name


def _may_overcommit(name: str) -> bool:
    return _is_native(name) and not name.startswith(HUGE_PAGES)


def qos_class(spec: Object) -> str:
    """The QoS class of a pod: Guaranteed, Burstable or BestEffort."""
    pod_level = spec.get("resources")
    wanted = [pod_level] if pod_level and (pod_level.get("limits") or pod_level.get("requests")) else None
    if wanted is None:
        containers: Iterable[Object] = (*(spec.get("containers") or ()), *(spec.get("initContainers") or ()))
        wanted = [container.get("resources") or {} for container in containers]
    requirements = [(_compute(want.get("requests")), _compute(want.get("limits"))) for want in wanted]
    if not any(requests or limits for requests, limits in requirements):
        return "BestEffort"
    if all(len(limits) == 2 and requests == limits for requests, limits in requirements):
        return "Guaranteed"
    return "Burstable"


def _compute(amounts: Any) -> dict[str, int]:
    """The non-zero amounts of cpu and memory, which decide the QoS class."""
    found = {name: parse(amounts[name]).billionths for name in ("cpu", "memory") if name in (amounts or ())}
    return {name: amount for name, amount in found.items() if amount > 0}
