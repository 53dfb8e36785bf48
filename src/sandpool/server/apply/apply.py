"""Server-side apply: a manager applies a configuration and owns exactly the fields in it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import or_
from typing import Final, NamedTuple

from sandpool.api.causes import quoted
from sandpool.api.resource import Object, ResourceType
from sandpool.api.schema.shape import Shape
from sandpool.kube.errors import ApiError, BadRequest, Conflict
from sandpool.server.apply import path_elements
from sandpool.server.apply.comparison import fields_of, json_equal, without_scalars, zero_value
from sandpool.server.apply.fieldset import FieldSet, Path
from sandpool.server.apply.last_applied import KUBECTL, fields_last_applied, update_annotation
from sandpool.server.apply.managed_fields import (
    APPLY,
    UPDATE,
    entry,
    identifier,
    identity,
    insert_sorted,
    owned_fields,
    with_managed_fields,
    with_owned_fields,
    with_time,
)
from sandpool.server.apply.merge import merge
from sandpool.server.apply.prune import prune
from sandpool.server.apply.reset_fields import SERVER_MANAGED
from sandpool.server.apply.schema_paths import InvalidListItem, reconcile
from sandpool.server.apply.update import changed, take_ownership
from sandpool.server.apply.validate import schema_errors

# The owner of the fields that an object had before its first apply, if its managers were not tracked until then.
BEFORE_FIRST_APPLY: Final = "before-first-apply"


def apply(
    live: Object | None,
    applied: Object,
    *,
    shape: Shape,
    manager: str,
    force: bool,
    subresource: str,
    now: str,
    reset: FieldSet | None,
) -> Object:
    """Apply the configuration ``applied`` to ``live``, or to a new object if ``live`` is None.

    ``manager``, ``subresource``, ``now`` and ``reset`` are as for ``track_update``. Without ``force``, raises Conflict
    if fields of other managers would change. Raises BadRequest if the configuration has managedFields, and a plain
    error 500, as kube-apiserver does, if it does not fit the schema. The result is not defaulted: defaults have no
    owner.
    """
    _check(applied, shape)
    writer = entry(manager, APPLY, applied["apiVersion"], subresource, now)
    try:
        result = _apply(live, applied, writer, force, shape, reset)
    except InvalidListItem as error:
        raise _unfit("live", applied, str(error)) from None
    return update_annotation(result, applied) if manager == KUBECTL else result


def _apply(
    live: Object | None,
    applied: Object,
    writer: Object,
    force: bool,
    shape: Shape,
    reset: FieldSet | None,
) -> Object:
    before = zero_value(shape) if live is None else with_managed_fields(live, [])
    mine, others = _managers(live, writer, shape, reset)
    wanted = fields_of(applied, shape)
    if reset is not None:
        wanted = wanted.without(reset)

    after = merge(without_scalars(before) if live is None else before, applied, shape)
    if mine is not None and not owned_fields(mine) <= wanted:
        after = prune(after, owned_fields(mine), reduce(or_, map(owned_fields, others), wanted), shape)

    written, removed = changed(before, after, shape, reset)
    if not force:
        _refuse_conflicts(others, written, before, writer, shape)
    is_same = live is not None and json_equal(before, after)
    if is_same:
        # Nothing changed, so the applier keeps the time of its entry; a new entry has none.
        writer = with_time(writer, mine.get("time", "") if mine is not None else "")
    entries = [with_owned_fields(other, left) for other in others if (left := owned_fields(other) - written - removed)]
    if claimed := wanted - SERVER_MANAGED:
        insert_sorted(entries, with_owned_fields(writer, claimed))
    return with_managed_fields(live if live is not None and is_same else after, entries)


def _managers(
    live: Object | None, writer: Object, shape: Shape, reset: FieldSet | None
) -> tuple[Object | None, list[Object]]:
    """The previous entry of the applier, if any, and the entries of all others."""
    entries: list[Object] = (live["metadata"].get("managedFields") or []) if live is not None else []
    if not entries and live is not None:
        first = {**writer, "manager": BEFORE_FIRST_APPLY, "operation": UPDATE}
        return None, take_ownership([], changed(zero_value(shape), live, shape, reset), shape, first)
    entries = [with_owned_fields(each, reconcile(owned_fields(each), shape)) for each in entries]
    mine = next((each for each in entries if identity(each) == identity(writer)), None)
    return mine, [each for each in entries if each is not mine]


def _refuse_conflicts(others: list[Object], written: FieldSet, live: Object, writer: Object, shape: Shape) -> None:
    conflicts = find_conflicts(others, written)
    if conflicts and writer["manager"] == KUBECTL:
        allowed = fields_last_applied(live, shape, writer["apiVersion"])
        conflicts = [each for each in conflicts if each.path not in allowed]
    if conflicts:
        raise conflict(conflicts)


def check_applied_kind(applied: Object, type: ResourceType) -> None:
    """Raise BadRequest unless the configuration has the kind of the resource."""
    if applied.get("apiVersion") != type.api_version or applied.get("kind") != type.kind:
        raise BadRequest(f"invalid object type: {_kind(applied)}")


def _check(applied: Object, shape: Shape) -> None:
    if (applied.get("metadata") or {}).get("managedFields") is not None:
        raise BadRequest("metadata.managedFields must be nil")
    wrong = schema_errors(applied, shape)
    if wrong:
        raise _unfit("patch", applied, wrong)


def _unfit(which: str, applied: Object, wrong: str) -> ApiError:
    metadata = applied.get("metadata") or {}
    subject = f"{metadata.get('namespace', '')}/{metadata.get('name', '')}; {_kind(applied)}"
    return ApiError(f"failed to create typed {which} object ({subject}): {wrong}", code=500, reason="")


def _kind(applied: Object) -> str:
    group, _, version = str(applied.get("apiVersion") or "").rpartition("/")
    return f"{group}/{version}, Kind={applied.get('kind') or ''}"


class FieldConflict(NamedTuple):
    owner: Object  # an entry of managedFields
    path: Path


def find_conflicts(owners: Iterable[Object], written: FieldSet) -> list[FieldConflict]:
    """All fields of ``written`` that have an owner, ordered by owner."""
    return [
        FieldConflict(owner, path) for owner in sorted(owners, key=identifier) for path in owned_fields(owner) & written
    ]


def conflict(conflicts: list[FieldConflict]) -> Conflict:
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {_owner(each)}", "field": _field(each)}
        for each in conflicts
    ]
    if len(conflicts) == 1:
        message = f"Apply failed with 1 conflict: conflict with {_owner(conflicts[0])}: {_field(conflicts[0])}"
    else:
        lines: list[str] = []
        named: Object | None = None
        for each in conflicts:
            if each.owner is not named:
                lines.append(f"conflicts with {_owner(each)}:")
                named = each.owner
            lines.append(f"- {_field(each)}")
        message = f"Apply failed with {len(conflicts)} conflicts: " + "\n".join(lines)
    return Conflict(message, details={"causes": causes})


def _owner(each: FieldConflict) -> str:
    owner = each.owner
    name = quoted(owner.get("manager", ""))
    if owner.get("subresource"):
        name += f" with subresource {quoted(owner['subresource'])}"
    return f"{name} using {owner['apiVersion']}" if owner["operation"] == UPDATE else name


def _field(each: FieldConflict) -> str:
    return "".join(map(path_elements.text, each.path))
