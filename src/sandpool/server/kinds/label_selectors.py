"""Label selectors inside objects (matchLabels, matchExpressions): validation and matching."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sandpool.api.causes import Cause, forbidden, invalid, required
from sandpool.api.resource import Object
from sandpool.server import names
from sandpool.server.kinds.metadata import validate_labels


def validate_label_selector(selector: Object, path: str) -> Iterator[Cause]:
    yield from validate_labels(selector.get("matchLabels") or {}, f"{path}.matchLabels")
    for index, requirement in enumerate(selector.get("matchExpressions") or ()):
        yield from _validate_requirement(requirement, f"{path}.matchExpressions[{index}]")


def _validate_requirement(requirement: Object, path: str) -> Iterator[Cause]:
    operator, values = requirement.get("operator"), requirement.get("values") or []
    if operator in ("In", "NotIn"):
        if not values:
            yield required(f"{path}.values", "must be specified when `operator` is 'In' or 'NotIn'")
    elif operator in ("Exists", "DoesNotExist"):
        if values:
            yield forbidden(f"{path}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
    else:
        yield invalid(f"{path}.operator", operator or "", "not a valid selector operator")
    key = requirement.get("key") or ""
    for why in names.qualified_name(key):
        yield invalid(f"{path}.key", key, why)
    for index, value in enumerate(values):
        for why in names.label_value(value):
            yield invalid(f"{path}.values[{index}]", value, why)


def matches(selector: Object, labels: Mapping[str, str]) -> bool:
    """Whether labels satisfy a valid selector. An empty selector matches everything."""
    wanted = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        _satisfied(requirement, labels) for requirement in selector.get("matchExpressions") or ()
    )


def _satisfied(requirement: Object, labels: Mapping[str, str]) -> bool:
    key, values = requirement["key"], requirement.get("values") or []
    match requirement["operator"]:
        case "In":
            return key in labels and labels[key] in values
        case "NotIn":
            return key not in labels or labels[key] not in values
        case "Exists":
            return key in labels
        case _:
            return key not in labels


def is_empty(selector: Object | None) -> bool:
    return not selector or not (selector.get("matchLabels") or selector.get("matchExpressions"))
