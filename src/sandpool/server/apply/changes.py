"""Which fields a value has, and which ones a write has touched.

Objects are copy-on-write, so a subtree that is the same object in both versions is unchanged and never entered: the
cost of comparing is that of what was written, not that of the object.

What a path in the result stands for follows kube-apiserver, down to its asymmetries. A field that appears is written
together with everything in it, container and parts. A container that was there before is not written when its parts
are. And the fields *of a value* (what an applier owns) do not include the declared fields that merely hold others,
while the fields that are *written* (what an updater owns) do.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NamedTuple

from sandpool.api.schema.shape import MISSING, Shape
from sandpool.server.apply import elements
from sandpool.server.apply.fieldset import EMPTY, REMEMBERED, FieldSet, make
from sandpool.server.apply.structure import is_atomic, is_parted, item, item_element, part


class Changes(NamedTuple):
    written: FieldSet  # fields that are new or have another value
    removed: FieldSet  # fields that are gone


NONE: Final = Changes(EMPTY, EMPTY)
_LEAF: Final = (True, EMPTY, EMPTY)
_SAME: Final = (False, EMPTY, EMPTY)

# The fields of a container as a walk finds them: names in the order they were met, parts with what is below them.
# Tuples, because they are the key under which the set is remembered.
_Members = tuple[str, ...]
_Children = tuple[tuple[str, FieldSet], ...]


@lru_cache(REMEMBERED)
def _map_fields(members: _Members, children: _Children) -> FieldSet:
    field = elements.field
    return make(map(field, members), {field(name): below for name, below in children})


@lru_cache(REMEMBERED)
def _list_fields(members: _Members, children: _Children) -> FieldSet:
    return make(members, dict(children))


def same(a: Any, b: Any) -> bool:
    """Whether two JSON values are equal. Numbers are compared as numbers, but unlike in Python a boolean is none."""
    return a is b or (a == b and _same_booleans(a, b))


def _same_booleans(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if isinstance(a, dict):
        return all(_same_booleans(each, b[name]) for name, each in a.items())
    if isinstance(a, list):
        return all(map(_same_booleans, a, b))
    return isinstance(a, bool) is isinstance(b, bool)


def compare(old: dict[str, Any], new: dict[str, Any], shape: Shape) -> Changes:
    """What has to be done to ``old`` to make it ``new``. Raises BadItem."""
    return NONE if old is new else _compare_maps(old, new, shape)


def _compare_maps(old: dict[str, Any], new: dict[str, Any], shape: Shape) -> Changes:
    before_of = old.get
    shape_of = shape.properties.get
    members: list[str] = []
    children: list[tuple[str, FieldSet]] = []
    gone_members: list[str] = []
    gone_children: list[tuple[str, FieldSet]] = []
    added = 0
    for name, after in new.items():
        before = before_of(name, MISSING)
        if before is after:
            continue
        kind = after.__class__
        if before is MISSING:
            added += 1
            members.append(name)
            if kind is dict or kind is list:
                below = added_fields(after, shape_of(name) or part(shape, name))
                if below is not EMPTY:
                    children.append((name, below))
        elif kind is str:
            # Most of what changes is text; this spares it the walk.
            if before.__class__ is not str:
                gone = added_fields(before, shape_of(name) or part(shape, name))
                if gone is not EMPTY:
                    gone_children.append((name, gone))
                members.append(name)
            elif before != after:
                members.append(name)
        else:
            touched, below, gone = _compare(before, after, shape_of(name) or part(shape, name))
            if touched:
                members.append(name)
            if below is not EMPTY:
                children.append((name, below))
            if gone is not EMPTY:
                gone_children.append((name, gone))
    if len(old) + added != len(new):
        for name, before in old.items():
            if name not in new:
                gone_members.append(name)
                below = added_fields(before, shape_of(name) or part(shape, name))
                if below is not EMPTY:
                    gone_children.append((name, below))
    return Changes(
        _map_fields(tuple(members), tuple(children)) if members or children else EMPTY,
        _map_fields(tuple(gone_members), tuple(gone_children)) if gone_members or gone_children else EMPTY,
    )


def _compare(old: Any, new: Any, shape: Shape) -> tuple[bool, FieldSet, FieldSet]:
    """Whether the value itself counts as written, what is written below it, and what is gone below it."""
    old_parted, new_parted = is_parted(shape, old), is_parted(shape, new)
    if old_parted and new_parted and old.__class__ is new.__class__:
        changes = _compare_maps(old, new, shape) if new.__class__ is dict else _compare_lists(old, new, shape)
        return (False, *changes)
    if not old_parted and not new_parted:
        return _SAME if same(old, new) else _LEAF
    # A container became empty, or was; or one kind of value took the place of another. Parts come and go, and the
    # value itself counts as written unless the other side is just an empty container of the same kind.
    container = (new if new_parted else old).__class__
    other = old if new_parted else new
    replaced = not (other is None or (other.__class__ is container and not is_atomic(shape, container)))
    return (
        replaced or (old_parted and new_parted),
        added_fields(new, shape) if new_parted else EMPTY,
        added_fields(old, shape) if old_parted else EMPTY,
    )


def _compare_lists(old: list[Any], new: list[Any], shape: Shape) -> Changes:
    before, after = _by_element(old, shape), _by_element(new, shape)
    inner = item(shape)
    members: list[str] = []
    children: list[tuple[str, FieldSet]] = []
    gone_members: list[str] = []
    gone_children: list[tuple[str, FieldSet]] = []

    def comes(element: str, value: Any) -> None:
        members.append(element)
        below = added_fields(value, inner)
        if below is not EMPTY:
            children.append((element, below))

    def goes(element: str, value: Any) -> None:
        gone_members.append(element)
        below = added_fields(value, inner)
        if below is not EMPTY:
            gone_children.append((element, below))

    for element, values in after.items():
        earlier = before.get(element)
        if earlier is None:
            if len(values) == 1:
                comes(element, values[0])
            else:
                members.append(element)
        elif len(values) == len(earlier) == 1:
            if earlier[0] is not values[0]:
                touched, below, gone = _compare(earlier[0], values[0], inner)
                if touched:
                    members.append(element)
                if below is not EMPTY:
                    children.append((element, below))
                if gone is not EMPTY:
                    gone_children.append((element, gone))
        # Items that share an element are owned together, as one value without parts.
        elif len(values) > 1 and len(earlier) > 1:
            if not same(earlier, values):
                members.append(element)
        elif len(earlier) > 1:
            comes(element, values[0])
            gone_members.append(element)
        else:
            goes(element, earlier[0])
            members.append(element)
    for element, earlier in before.items():
        if element not in after:
            if len(earlier) == 1:
                goes(element, earlier[0])
            else:
                gone_members.append(element)
    return Changes(
        _list_fields(tuple(members), tuple(children)), _list_fields(tuple(gone_members), tuple(gone_children))
    )


def _by_element(values: list[Any], shape: Shape) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for value in values:
        found.setdefault(item_element(shape, value), []).append(value)
    return found


def added_fields(value: Any, shape: Shape) -> FieldSet:
    """What is written below a value that was not there before: everything in it. Raises BadItem."""
    if not is_parted(shape, value):
        return EMPTY
    members: list[str] = []
    children: list[tuple[str, FieldSet]] = []
    if value.__class__ is dict:
        shape_of = shape.properties.get
        for name, each in value.items():
            members.append(name)
            kind = each.__class__
            if kind is dict or kind is list:
                below = added_fields(each, shape_of(name) or part(shape, name))
                if below is not EMPTY:
                    children.append((name, below))
        return _map_fields(tuple(members), tuple(children))
    inner = item(shape)
    for element, values in _by_element(value, shape).items():
        members.append(element)
        if len(values) == 1:
            below = added_fields(values[0], inner)
            if below is not EMPTY:
                children.append((element, below))
    return _list_fields(tuple(members), tuple(children))


def fields_of(value: Any, shape: Shape) -> FieldSet:
    """The fields an applier of this value owns. Raises BadItem."""
    if not is_parted(shape, value):
        return EMPTY
    members: list[str] = []
    children: list[tuple[str, FieldSet]] = []
    if value.__class__ is dict:
        for name, each in value.items():
            declared = name in shape.properties
            kind = each.__class__
            if kind is dict or kind is list:
                inner = part(shape, name)
                if is_parted(inner, each):
                    below = fields_of(each, inner)
                    if below is not EMPTY:
                        children.append((name, below))
                    if declared:
                        continue
                elif declared and kind is list and not is_atomic(inner, list):
                    continue  # an empty set or keyed list has no items to own
            members.append(name)
        return _map_fields(tuple(members), tuple(children))
    inner = item(shape)
    for element, values in _by_element(value, shape).items():
        members.append(element)
        if len(values) == 1:
            below = fields_of(values[0], inner)
            if below is not EMPTY:
                children.append((element, below))
    return _list_fields(tuple(members), tuple(children))
