"""Server-side apply: a manager says what it wants, and owns exactly that."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import or_
from typing import Final

from sandpool.api.resource import Object, ResourceType
from sandpool.api.schema.shape import Shape
from sandpool.kube.errors import ApiError, BadRequest
from sandpool.server.apply.blank import present
from sandpool.server.apply.changes import fields_of, same
from sandpool.server.apply.conflicts import conflict, find_clashes
from sandpool.server.apply.fieldset import EMPTY, FieldSet
from sandpool.server.apply.lastapplied import KUBECTL, forgiven, refresh
from sandpool.server.apply.managed import APPLY, UPDATE, Entry, stored, with_managed_fields, without_managed_fields
from sandpool.server.apply.merge import merge
from sandpool.server.apply.prune import prune
from sandpool.server.apply.reconcile import reconcile
from sandpool.server.apply.resets import BOOKKEEPING
from sandpool.server.apply.structure import BadItem
from sandpool.server.apply.update import changed, taken, yielded
from sandpool.server.apply.validate import problems

# Who owns what an object had when the first apply came, if its managers were not tracked until then.
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
    reset: FieldSet | None = None,
    blank: Object | None = None,
) -> Object:
    """``live``, or a new object if that is None, as it is after ``manager`` applied ``applied``.

    The arguments are those of ``track_update``. Raises Conflict if fields that others own would change, BadRequest if
    the configuration names managers, and a plain error 500, as kube-apiserver does, if it does not fit the schema.
    The result has not been defaulted: nobody owns a default.
    """
    _check(applied, shape)
    writer = Entry(manager, APPLY, applied["apiVersion"], subresource, now, EMPTY)
    try:
        result = _apply(live, applied, writer, force, shape, reset, blank or {})
    except BadItem as error:
        raise _unfit("live", applied, str(error)) from None
    return refresh(result, applied) if manager == KUBECTL else result


def _apply(
    live: Object | None,
    applied: Object,
    writer: Entry,
    force: bool,
    shape: Shape,
    reset: FieldSet | None,
    blank: Object,
) -> Object:
    before = blank if live is None else without_managed_fields(live)
    mine, others = _managers(live, writer, shape, reset, blank)
    owned = fields_of(applied, shape)
    if reset is not None:
        owned = owned.without(reset)

    after = merge(present(blank) if live is None else before, applied, shape)
    if mine is not None and not mine.fields <= owned:
        after = prune(after, mine.fields, reduce(or_, (other.fields for other in others), owned), shape)

    changes = changed(before, after, shape, reset)
    if not force:
        _refuse_clashes(others, changes.written, before, writer, shape)
    left = yielded(others, changes)
    owned -= BOOKKEEPING
    if live is not None and same(before, after):
        # Nothing is different, so nothing happened now: the applier keeps its time, and has none if it is new.
        if owned:
            left.append(mine.owning(owned) if mine is not None else writer._replace(fields=owned, time=""))
        return with_managed_fields(live, left)
    if owned:
        left.append(writer.owning(owned))
    return with_managed_fields(after, left)


def _managers(
    live: Object | None, writer: Entry, shape: Shape, reset: FieldSet | None, blank: Object
) -> tuple[Entry | None, list[Entry]]:
    """The applier's entry from before, if there is one, and those of all others."""
    if live is None:
        return None, []
    entries = stored(live["metadata"].get("managedFields") or ())
    if not entries:
        first = writer._replace(manager=BEFORE_FIRST_APPLY, operation=UPDATE)
        return None, taken((), changed(blank, live, shape, reset), first)
    entries = [entry.owning(reconcile(entry.fields, shape)) for entry in entries]
    mine = next((entry for entry in entries if entry.identity == writer.identity), None)
    return mine, [entry for entry in entries if entry is not mine]


def _refuse_clashes(others: Iterable[Entry], written: FieldSet, live: Object, writer: Entry, shape: Shape) -> None:
    clashes = find_clashes(others, written)
    if clashes and writer.manager == KUBECTL:
        allowed = forgiven(live, shape, writer.api_version)
        clashes = [clash for clash in clashes if clash.path not in allowed]
    if clashes:
        raise conflict(clashes)


def check_applied_kind(applied: Object, type: ResourceType) -> None:
    """Raise BadRequest unless the configuration is of the kind it is applied to."""
    if applied.get("apiVersion") != type.api_version or applied.get("kind") != type.kind:
        raise BadRequest(f"invalid object type: {_kind(applied)}")


def _check(applied: Object, shape: Shape) -> None:
    if (applied.get("metadata") or {}).get("managedFields") is not None:
        raise BadRequest("metadata.managedFields must be nil")
    wrong = problems(applied, shape)
    if wrong:
        raise _unfit("patch", applied, wrong)


def _unfit(which: str, applied: Object, wrong: str) -> ApiError:
    metadata = applied.get("metadata") or {}
    subject = f"{metadata.get('namespace', '')}/{metadata.get('name', '')}; {_kind(applied)}"
    return ApiError(f"failed to create typed {which} object ({subject}): {wrong}", code=500, reason="")


def _kind(applied: Object) -> str:
    group, _, version = str(applied.get("apiVersion") or "").rpartition("/")
    return f"{group}/{version}, Kind={applied.get('kind') or ''}"
