"""Checks whether a pod fits a node, and if not, why, in kube-scheduler's words."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from sandpool.api.conditions import READY, TRUE, find_condition
from sandpool.api.labels import UNAVAILABLE_RUNTIMES
from sandpool.api.quantity import Family, Quantity, parse
from sandpool.api.resource import Object
from sandpool.node.runtimes.handlers import refusal
from sandpool.node.scheduling.requirements import PodRequirements

_UNSCHEDULABLE: Final = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
_NOT_READY: Final = "node(s) were not ready"
_AFFINITY: Final = "node(s) didn't match Pod's node affinity/selector"
_VOLUME_AFFINITY: Final = "node(s) didn't match PersistentVolume's node affinity"


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as the scheduler sees it. ``handlers`` are its runtimes; an empty set means unknown. ``missing``
    gives the reasons why others are unavailable."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[tuple[str, str, str], ...]  # key, value, effect
    allocatable: Mapping[str, int]  # in billionths
    ready: bool
    handlers: frozenset[str]
    missing: Mapping[str, str]

    @classmethod
    def from_object(cls, node: Object) -> NodeView:
        spec, status = node.get("spec") or {}, node.get("status") or {}
        known = status.get("conditions") or []
        ready = find_condition(known, READY)
        taints = [*(spec.get("taints") or ()), *([_UNSCHEDULABLE] if spec.get("unschedulable") else [])]
        return cls(
            node["metadata"]["name"],
            node["metadata"].get("labels") or {},
            tuple((each["key"], each.get("value") or "", each["effect"]) for each in taints),
            {name: parse(amount).billionths for name, amount in (status.get("allocatable") or {}).items()},
            ready is not None and ready.get("status") == TRUE,
            frozenset(each.get("name") or "" for each in status.get("runtimeHandlers") or ()),
            _missing(node["metadata"].get("annotations") or {}),
        )


def _missing(annotations: Mapping[str, str]) -> Mapping[str, str]:
    """Parse the annotation. Any client may have written it, so it may be malformed."""
    try:
        found = json.loads(annotations.get(UNAVAILABLE_RUNTIMES) or "{}")
    except ValueError:
        return {}
    return {name: str(why) for name, why in found.items()} if isinstance(found, dict) else {}


def unmet_requirements(
    requirements: PodRequirements,
    node: NodeView,
    used: Mapping[str, int],
    handler: Callable[[str], str | None],
    volumes: Iterable[Object] = (),
) -> Iterator[str]:
    """Yield why a pod cannot run on a node now. ``used`` is what other pods there request, ``handler`` returns the
    handler of a RuntimeClass, ``volumes`` are the node selectors of the pod's volumes."""
    choice = requirements.choice
    if not node.ready:
        yield _NOT_READY
    if not _selected(choice, node):
        yield _AFFINITY
    if not all(matches(selector, node) for selector in volumes):
        yield _VOLUME_AFFINITY
    for key, value, effect in node.taints:
        if effect != "PreferNoSchedule" and not _tolerated(choice["tolerations"], key, value, effect):
            yield (
                f"node(s) had untolerated taint {{{key}: {value}}}"
                if value
                else f"node(s) had untolerated taint {{{key}}}"
            )
    if choice["others"]:
        yield f"node(s) cannot be selected by {' and '.join(choice['others'])}, which this scheduler does not support"
    if requirements.runtime_class:
        yield from _runtime(requirements.runtime_class, handler(requirements.runtime_class), node)
    for name, amount in requirements.requests:
        if used.get(name, 0) + amount > node.allocatable.get(name, 0):
            yield _insufficient(name)


def _insufficient(resource: str) -> str:
    return "Too many pods" if resource == "pods" else f"Insufficient {resource}"


def shortages(
    requirements: PodRequirements, nodes: Iterable[NodeView], used: Mapping[str, Mapping[str, int]]
) -> Mapping[str, str]:
    """Return the numbers behind each reason for insufficient resources: the request, and the most that a node has free.
    ``used`` is what other pods request, by node."""
    numbers: dict[str, str] = {}
    for name, amount in requirements.requests:
        free = [node.allocatable.get(name, 0) - used.get(node.name, {}).get(name, 0) for node in nodes]
        most = max((*free, 0))
        family: Family = "decimal" if name in ("cpu", "pods") else "binary"
        where = "free" if len(free) == 1 else "free on a node at most"
        numbers[_insufficient(name)] = f"{Quantity(amount, family)} requested, {Quantity(most, family)} {where}"
    return numbers


def _runtime(name: str, handler: str | None, node: NodeView) -> Iterator[str]:
    if handler is None:
        yield f'node(s) know no RuntimeClass "{name}"'
    elif node.handlers and handler not in node.handlers:
        yield refusal(handler, node.missing.get(handler, ""))


def message(reasons: list[list[str]], numbers: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the message for a pod that fits no node, given the reasons for each node and the ``shortages``."""
    counts: dict[str, int] = {}
    for found in reasons:
        for reason in found:
            counts[reason] = counts.get(reason, 0) + 1
    texts = {reason: f"{reason} ({numbers[reason]})" if reason in numbers else reason for reason in counts}
    return none_of(len(reasons), ", ".join(f"{count} {texts[reason]}" for reason, count in sorted(counts.items())))


def none_of(nodes: int, why: str) -> str:
    """Return the message for a pod that fits none of ``nodes`` nodes."""
    return f"0/{nodes} nodes are available: {why}." if nodes else "no nodes available to schedule pods"


# -- node selection ------------------------------------------------------------------------------------------------


def _selected(choice: Object, node: NodeView) -> bool:
    if any(node.labels.get(key) != value for key, value in choice["nodeSelector"].items()):
        return False
    return matches(choice["nodeAffinity"], node)


def matches(selector: Object, node: NodeView) -> bool:
    """Whether a NodeSelector selects a node; an empty one selects all."""
    return not selector or any(_term(term, node) for term in selector.get("nodeSelectorTerms") or ())


def _term(term: Object, node: NodeView) -> bool:
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False  # an empty term selects nothing
    return all(_matches(each, node.labels) for each in expressions) and all(
        _matches(each, {"metadata.name": node.name}) for each in fields
    )


def _matches(expression: Object, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or []
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            if value is None or not _is_integer(value) or len(values) != 1:
                return False
            return int(value) > int(values[0]) if operator == "Gt" else int(value) < int(values[0])
    return False


def _is_integer(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


def _tolerated(tolerations: list[Object], key: str, value: str, effect: str) -> bool:
    return any(_tolerates(each, key, value, effect) for each in tolerations)


def _tolerates(toleration: Object, key: str, value: str, effect: str) -> bool:
    if toleration.get("effect") not in (None, "", effect):
        return False
    if toleration.get("key") not in (None, "", key):
        return False
    if (toleration.get("operator") or "Equal") == "Exists":
        return True
    return bool(toleration.get("key")) and (toleration.get("value") or "") == value
