"""Options of requests, parsed from the query and validated the way kube-apiserver does."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import orjson

from sandpool.api.resource import Object, ResourceType
from sandpool.api.schema.admit import Admission, Undecodable, compile_admission
from sandpool.api.schema.core import definition
from sandpool.kube.errors import ApiError, BadRequest, Cause, Invalid, invalid
from sandpool.kube.selectors import FieldSelector, LabelSelector
from sandpool.server.request.request_info import truthy

FIELD_VALIDATION = ("", "Ignore", "Strict", "Warn")
PROPAGATION_POLICIES = ("Foreground", "Background", "Orphan")
#: Characters of a selector. Parsing so many takes some milliseconds.
MAX_SELECTOR = 16 * 1024
#: Requirements of a label selector; each is compared with every object of a list. One requirement has any number of
#: values at no cost.
MAX_REQUIREMENTS = 256
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+")
_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    manager: str  # the field manager that owns the written fields
    dry_run: bool = False
    field_validation: str = "Warn"
    force: bool | None = None
    with_metadata: bool = False  # see ``ServerRequest``
    # Called with the object to be stored and the one it replaces; raises if this user may not store it.
    guard: Callable[[Object, Object | None], None] | None = None
    create_refusal: ApiError | None = None  # raised by an update or patch that would create an object


@dataclass(frozen=True, slots=True)
class ListOptions:
    labels: LabelSelector | None = None
    fields: FieldSelector | None = None
    limit: int = 0
    continue_token: str = ""
    resource_version: str = ""
    resource_version_match: str = ""


@dataclass(frozen=True, slots=True)
class WatchOptions:
    labels: LabelSelector | None = None
    fields: FieldSelector | None = None
    resource_version: str = ""
    resource_version_match: str = ""
    bookmarks: bool = False
    initial_events: bool | None = None
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    grace_period: int | None = None
    propagation: str = ""
    uid: str = ""
    resource_version: str = ""
    dry_run: bool = False


def refused(kind: str, cause: Cause) -> Invalid:
    """The error for invalid options."""
    return invalid(ResourceType("meta.k8s.io", "v1", kind, ""), "", [cause])


def _unsupported(what: str, kind: str, value: str | list[str], supported: tuple[str, ...]) -> Invalid:
    listed = ", ".join(f'"{each}"' for each in supported)
    shown = orjson.dumps(value).decode()
    return refused(
        kind, Cause(what, "FieldValueNotSupported", f"Unsupported value: {shown}: supported values: {listed}")
    )


def dry_run(values: str | list[str] | None, kind: str) -> bool:
    if not values:
        return False
    given = [values] if isinstance(values, str) else values
    if any(value and value != "All" for value in given):
        raise _unsupported("dryRun", kind, given, ("All",))
    return any(given)


def write_options(
    query: Mapping[str, str], manager: str, kind: str, guard: Callable[[Object, Object | None], None] | None = None
) -> WriteOptions:
    validation = query.get("fieldValidation") or "Warn"
    if validation not in FIELD_VALIDATION:
        raise _unsupported("fieldValidation", kind, validation, FIELD_VALIDATION)
    force = query.get("force")
    return WriteOptions(
        manager=manager,
        dry_run=dry_run(query.get("dryRun"), kind),
        field_validation=validation,
        force=truthy(force) if force is not None else None,
        guard=guard,
    )


def _number(query: Mapping[str, str], name: str) -> int:
    text = query.get(name, "")
    if not text:
        return 0
    if not _WHOLE_NUMBER.fullmatch(text):
        raise BadRequest(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    # int() raises another error for thousands of digits.
    if len(text) > 20 or not _INT64.start <= (number := int(text)) < _INT64.stop:
        raise BadRequest(f'strconv.ParseInt: parsing "{text}": value out of range')
    return number


def _selectors(query: Mapping[str, str]) -> tuple[LabelSelector | None, FieldSelector | None]:
    labels, fields = query.get("labelSelector", ""), query.get("fieldSelector", "")
    for name, text in (("labelSelector", labels), ("fieldSelector", fields)):
        if len(text) > MAX_SELECTOR:
            raise BadRequest(f"the {name} has {len(text)} characters; the limit is {MAX_SELECTOR}")
    selector = LabelSelector.parse(labels) if labels else None
    if selector is not None and len(selector.requirements) > MAX_REQUIREMENTS:
        found = len(selector.requirements)
        raise BadRequest(f"the labelSelector has {found} requirements; the limit is {MAX_REQUIREMENTS}")
    return selector, FieldSelector.parse(fields) if fields else None


def list_options(query: Mapping[str, str]) -> ListOptions:
    labels, fields = _selectors(query)
    if "sendInitialEvents" in query:
        why = "Forbidden: sendInitialEvents is forbidden for list"
        raise refused("ListOptions", Cause("sendInitialEvents", "FieldValueForbidden", why))
    return ListOptions(
        labels=labels,
        fields=fields,
        limit=max(_number(query, "limit"), 0),
        continue_token=query.get("continue", ""),
        resource_version=query.get("resourceVersion", ""),
        resource_version_match=query.get("resourceVersionMatch", ""),
    )


def watch_options(query: Mapping[str, str]) -> WatchOptions:
    labels, fields = _selectors(query)
    initial = query.get("sendInitialEvents")
    timeout = _number(query, "timeoutSeconds")
    return WatchOptions(
        labels=labels,
        fields=fields,
        resource_version=query.get("resourceVersion", ""),
        resource_version_match=query.get("resourceVersionMatch", ""),
        bookmarks=truthy(query.get("allowWatchBookmarks")),
        initial_events=truthy(initial) if initial is not None else None,
        timeout=float(timeout) if timeout > 0 else None,
    )


@cache
def _delete_options_admission() -> Admission:
    return compile_admission(definition("io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"))


def delete_options(query: Mapping[str, str], body: Any) -> DeleteOptions:
    """Parse options from the body, and from the query where the body leaves them out."""
    options = body if body is not None else {}
    if not isinstance(options, dict):
        raise BadRequest("unable to decode the body as DeleteOptions: it is not an object")
    kind = options.get("kind")
    if kind not in (None, "", "DeleteOptions"):
        raise BadRequest(f"unable to decode the body as DeleteOptions: it is a {kind}")
    try:
        options = _delete_options_admission()(options).object
    except Undecodable as error:
        raise BadRequest(f"unable to decode the body as DeleteOptions: {error}") from None
    grace = options.get("gracePeriodSeconds")
    if grace is None and query.get("gracePeriodSeconds"):
        grace = _number(query, "gracePeriodSeconds")
    propagation = options.get("propagationPolicy") or query.get("propagationPolicy") or ""
    orphan = options.get("orphanDependents")
    if orphan is None and "orphanDependents" in query:
        orphan = truthy(query["orphanDependents"])
    if orphan is not None:
        if propagation:
            cause = Cause(
                "propagationPolicy",
                "FieldValueInvalid",
                f'Invalid value: "{propagation}": orphanDependents and deletionPropagation cannot be both set',
            )
            raise refused("DeleteOptions", cause)
        propagation = "Orphan" if orphan else "Background"
    if propagation and propagation not in PROPAGATION_POLICIES:
        raise _unsupported("propagationPolicy", "DeleteOptions", str(propagation), (*PROPAGATION_POLICIES, "nil"))
    preconditions = options.get("preconditions") or {}
    return DeleteOptions(
        grace_period=grace,
        propagation=str(propagation),
        uid=str(preconditions.get("uid") or ""),
        resource_version=str(preconditions.get("resourceVersion") or ""),
        dry_run=dry_run(options.get("dryRun") or query.get("dryRun"), "DeleteOptions"),
    )
