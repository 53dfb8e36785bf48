"""Validation of scheduling constraints: affinity, tolerations, topology spread, scheduling gates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sandpool.api.causes import Cause, duplicate, forbidden, invalid, not_supported, required
from sandpool.api.resource import Object
from sandpool.server import names
from sandpool.server.kinds.copy_on_write import drop
from sandpool.server.kinds.label_selectors import validate_label_selector

TAINT_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_UNSATISFIABLE: Final = ("DoNotSchedule", "ScheduleAnyway")
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


def validate_tolerations(tolerations: list[Object], path: str) -> Iterator[Cause]:
    for index, toleration in enumerate(tolerations):
        at = f"{path}[{index}]"
        key, value = toleration.get("key") or "", toleration.get("value") or ""
        operator, effect = toleration.get("operator") or "", toleration.get("effect") or ""
        if key:
            yield from (invalid(f"{at}.key", key, why) for why in names.qualified_name(key))
        elif operator != "Exists":
            why = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
            yield invalid(f"{at}.operator", operator, why)
        if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
            yield invalid(f"{at}.effect", effect, "effect must be 'NoExecute' when `tolerationSeconds` is set")
        if operator in ("", "Equal"):
            if wrong := names.label_value(value):
                yield invalid(f"{at}.operator", value, ";".join(wrong))
        elif operator != "Exists":
            yield not_supported(f"{at}.operator", operator, ("Equal", "Exists"))
        elif value:
            yield invalid(f"{at}.operator", value, "value must be empty when `operator` is 'Exists'")
        if effect and effect not in TAINT_EFFECTS:
            yield not_supported(f"{at}.effect", effect, TAINT_EFFECTS)


def validate_added_tolerations(new: list[Object], old: list[Object], path: str) -> Iterator[Cause]:
    """Validate that an update only adds tolerations or changes their tolerationSeconds."""
    kept = [drop(toleration, "tolerationSeconds") for toleration in new]
    if any(drop(toleration, "tolerationSeconds") not in kept for toleration in old):
        yield forbidden(path, "existing toleration can not be modified except its tolerationSeconds")
    else:
        yield from validate_tolerations(new, path)


def validate_gates(gates: list[Object], path: str) -> Iterator[Cause]:
    seen: set[str] = set()
    for index, gate in enumerate(gates):
        name = gate.get("name") or ""
        yield from (invalid(f"{path}[{index}]", name, why) for why in names.qualified_name(name))
        if name in seen:
            yield duplicate(f"{path}[{index}]", name)
        seen.add(name)


def validate_removed_gates(new: list[Object], old: list[Object], path: str) -> Iterator[Cause]:
    known = {gate.get("name") for gate in old}
    for index, gate in enumerate(new):
        if gate.get("name") not in known:
            why = f"only deletion is allowed, but found new scheduling gate '{gate.get('name')}'"
            yield forbidden(f"{path}[{index}].name", why)


def validate_affinity(affinity: Object, path: str) -> Iterator[Cause]:
    if (nodes := affinity.get("nodeAffinity")) is not None:
        yield from _validate_node_affinity(nodes, f"{path}.nodeAffinity")
    for kind in ("podAffinity", "podAntiAffinity"):
        if (pods := affinity.get(kind)) is not None:
            yield from _validate_pod_affinity(pods, f"{path}.{kind}")


def _validate_node_affinity(affinity: Object, path: str) -> Iterator[Cause]:
    if (wanted := affinity.get(_REQUIRED)) is not None:
        yield from validate_node_selector(wanted, f"{path}.{_REQUIRED}")
    for index, preferred in enumerate(affinity.get(_PREFERRED) or ()):
        at = f"{path}.{_PREFERRED}[{index}]"
        weight = preferred.get("weight") or 0
        if not 1 <= weight <= 100:
            yield invalid(f"{at}.weight", weight, "must be in the range 1-100")
        yield from _validate_node_term(preferred.get("preference") or {}, f"{at}.preference")


def validate_node_selector(selector: Object, path: str) -> Iterator[Cause]:
    terms = selector.get("nodeSelectorTerms") or []
    if not terms:
        yield required(f"{path}.nodeSelectorTerms", "must have at least one node selector term")
    for index, term in enumerate(terms):
        yield from _validate_node_term(term, f"{path}.nodeSelectorTerms[{index}]")


def _validate_node_term(term: Object, path: str) -> Iterator[Cause]:
    for index, requirement in enumerate(term.get("matchExpressions") or ()):
        at, key = f"{path}.matchExpressions[{index}]", requirement.get("key") or ""
        yield from _validate_node_operator(requirement, at)
        yield from (invalid(f"{at}.key", key, why) for why in names.qualified_name(key))


def _validate_node_operator(requirement: Object, path: str) -> Iterator[Cause]:
    operator, values = requirement.get("operator"), requirement.get("values") or []
    if operator in ("In", "NotIn"):
        if not values:
            yield required(f"{path}.values", "must be specified when `operator` is 'In' or 'NotIn'")
    elif operator in ("Exists", "DoesNotExist"):
        if values:
            yield forbidden(f"{path}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
    elif operator in ("Gt", "Lt"):
        if len(values) != 1:
            yield required(f"{path}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'")
    else:
        yield invalid(f"{path}.operator", operator or "", "not a valid selector operator")


def _validate_pod_affinity(affinity: Object, path: str) -> Iterator[Cause]:
    for index, term in enumerate(affinity.get(_REQUIRED) or ()):
        yield from _validate_pod_term(term, f"{path}.{_REQUIRED}[{index}]")
    for index, preferred in enumerate(affinity.get(_PREFERRED) or ()):
        at = f"{path}.{_PREFERRED}[{index}]"
        weight = preferred.get("weight") or 0
        if not 1 <= weight <= 100:
            yield invalid(f"{at}.weight", weight, "must be in the range 1-100")
        yield from _validate_pod_term(preferred.get("podAffinityTerm") or {}, f"{at}.podAffinityTerm")


def _validate_pod_term(term: Object, path: str) -> Iterator[Cause]:
    for field in ("labelSelector", "namespaceSelector"):
        if (selector := term.get(field)) is not None:
            yield from validate_label_selector(selector, f"{path}.{field}")
    for namespace in term.get("namespaces") or ():
        yield from (invalid(f"{path}.namespace", namespace, why) for why in names.label(namespace))
    key = term.get("topologyKey") or ""
    if not key:
        yield required(f"{path}.topologyKey", "can not be empty")
    yield from (invalid(f"{path}.topologyKey", key, why) for why in names.qualified_name(key))


def validate_spread(constraints: list[Object], path: str) -> Iterator[Cause]:
    for index, constraint in enumerate(constraints):
        at = f"{path}[{index}]"
        if (constraint.get("maxSkew") or 0) <= 0:
            yield invalid(f"{at}.maxSkew", constraint.get("maxSkew") or 0, "must be greater than zero")
        if not constraint.get("topologyKey"):
            yield required(f"{at}.topologyKey", "can not be empty")
        action = constraint.get("whenUnsatisfiable")
        if action not in _UNSATISFIABLE:
            yield not_supported(f"{at}.whenUnsatisfiable", action or "", _UNSATISFIABLE)
        pair = (constraint.get("topologyKey"), action)
        if any(
            (other.get("topologyKey"), other.get("whenUnsatisfiable")) == pair for other in constraints[index + 1 :]
        ):
            shown = f"{{{pair[0]}, {pair[1]}}}"
            yield duplicate(f"{at}.{{topologyKey, whenUnsatisfiable}}", shown)
        domains = constraint.get("minDomains")
        if domains is not None and domains <= 0:
            yield invalid(f"{at}.minDomains", domains, "must be greater than zero")
        if domains is not None and action != "DoNotSchedule":
            why = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}"
            yield invalid(f"{at}.minDomains", domains, why)
        if (selector := constraint.get("labelSelector")) is not None:
            yield from validate_label_selector(selector, f"{at}.labelSelector")
