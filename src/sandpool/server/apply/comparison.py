"""The fields of a value, and the fields that a write changed.

Objects are copy-on-write, so a subtree that is the same object in both versions is unchanged and is not entered. The
cost of a comparison is that of what was written, not that of the object.

What a path in the result means follows kube-apiserver, including its asymmetries. A new field counts as written
together with everything below it. A container that existed before does not count as written when its parts do. The
fields *of a value* (what an applier owns) leave out declared fields that only hold others; the fields that are
*written* (what an updater owns) include them.

The walks do not build sets. They return *path trees*: nested tuples of names, which are cheap to make and serve as the
cache key of the set, because the same fields are written again and again. A path tree is a tuple of parts. A part is
a name, or a tuple of a name and the path tree below it, with a third item if the name itself belongs to the set. The
path tree of a list has ``None`` as its first part, and path elements as names.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import repeat
from typing import Any, Final

import orjson

from sandpool.api.resource import Object
from sandpool.api.schema.shape import MISSING, Shape
from sandpool.server.apply import path_elements
from sandpool.server.apply.caches import cached, charge
from sandpool.server.apply.fieldset import CACHE_SIZE, EMPTY, FieldSet, make
from sandpool.server.apply.schema_paths import (
    has_owned_parts,
    is_atomic,
    item_element,
    items_by_element,
    shape_of_field,
    shape_of_item,
)

PathTree = tuple[Any, ...]

_NOTHING: Final[PathTree] = ()
_MISSING: Final = repeat(MISSING)
_TOO: Final = True  # the third item of a part


# The effect of a write: fields that are new or have another value, and fields that were removed.
Changes = tuple[FieldSet, FieldSet]
# The same as path trees.
ChangeTrees = tuple[PathTree, PathTree]


def compare(old: dict[str, Any], new: dict[str, Any], shape: Shape) -> Changes:
    """The changes from ``old`` to ``new``. Raises InvalidListItem."""
    return changes_of(compare_trees(old, new, shape))


def compare_trees(old: dict[str, Any], new: dict[str, Any], shape: Shape) -> ChangeTrees:
    """``compare``, as path trees."""
    return (_NOTHING, _NOTHING) if old is new else _compare_maps(old, new, shape)


def changes_of(trees: ChangeTrees) -> Changes:
    """The sets of two path trees."""
    written, removed = trees
    return _field_set(written) if written else EMPTY, _field_set(removed) if removed else EMPTY


def created_trees(new: dict[str, Any], shape: Shape) -> ChangeTrees:
    """The changes that create ``new``. Raises InvalidListItem.

    Thousands of objects are created from one template and differ in their names only, so equal specs are compared
    once.
    """
    nothing = zero_value(shape)
    if "spec" not in new:
        return compare_trees(nothing, new, shape)
    written, removed = compare_trees(_without_spec(nothing), _without_spec(new), shape)
    spec_written, spec_removed = _created_spec(orjson.dumps(new["spec"]), shape)
    return written + spec_written, removed + spec_removed


@cached(256)
def _created_spec(text: bytes, shape: Shape) -> ChangeTrees:
    charge(len(text))
    nothing = zero_value(shape)
    return compare_trees({"spec": nothing["spec"]} if "spec" in nothing else {}, {"spec": orjson.loads(text)}, shape)


def _without_spec(object: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in object.items() if name != "spec"}


def fields_of(value: Any, shape: Shape) -> FieldSet:
    """The fields that an applier of this value owns. Raises InvalidListItem."""
    return _field_set(_applied_tree(value, shape))


@cached(CACHE_SIZE)
def _field_set(tree: PathTree) -> FieldSet:
    in_list = bool(tree) and tree[0] is None
    members: list[str] = []
    children: dict[str, FieldSet] = {}
    size = 0
    for each in tree[1:] if in_list else tree:
        if isinstance(each, str):
            size += len(each)
            members.append(each if in_list else path_elements.field(each))
            continue
        size += len(each[0])
        name = each[0] if in_list else path_elements.field(each[0])
        children[name] = _field_set(each[1])
        if len(each) > 2:
            members.append(name)
    charge(size)
    return make(members, children)


def _compare_maps(old: dict[str, Any], new: dict[str, Any], shape: Shape) -> tuple[PathTree, PathTree]:
    # The hot path of every write: most values are unchanged, and most changed values are strings.
    written: list[Any] = []
    removed: list[Any] = []
    for (name, after), before in zip(new.items(), map(old.get, new, _MISSING), strict=False):
        if before is after:
            continue
        kind = after.__class__
        if kind is str and before.__class__ is str:
            if before != after:
                written.append(name)
        elif before is MISSING:
            if kind is dict or kind is list:
                below = _added(after, shape.properties.get(name) or shape_of_field(shape, name))
                written.append((name, below, _TOO) if below else name)
            else:
                written.append(name)
        else:
            inner = shape.properties.get(name) or shape_of_field(shape, name)
            touched, below, gone = _compare(before, after, inner)
            if below:
                written.append((name, below, _TOO) if touched else (name, below))
            elif touched:
                written.append(name)
            if gone:
                removed.append((name, gone))
    for name, before in old.items():
        if name not in new:
            gone = _added(before, shape_of_field(shape, name))
            removed.append((name, gone, _TOO) if gone else name)
    return tuple(written), tuple(removed)


def _compare_lists(old: list[Any], new: list[Any], shape: Shape) -> tuple[PathTree, PathTree]:
    before = items_by_element(shape, old)
    after = items_by_element(shape, new)
    if len(before) != len(old) or len(after) != len(new):
        return _compare_duplicates(_by_element(old, shape), _by_element(new, shape), shape)
    inner = shape_of_item(shape)
    written: list[Any] = [None]
    removed: list[Any] = [None]
    for element, value in after.items():
        earlier = before.get(element, MISSING)
        if earlier is value:
            continue
        if earlier is MISSING:
            below = _added(value, inner)
            written.append((element, below, _TOO) if below else element)
            continue
        touched, below, gone = _compare(earlier, value, inner)
        if below:
            written.append((element, below, _TOO) if touched else (element, below))
        elif touched:
            written.append(element)
        if gone:
            removed.append((element, gone))
    for element in [element for element in before if element not in after]:
        gone = _added(before[element], inner)
        removed.append((element, gone, _TOO) if gone else element)
    return tuple(written) if len(written) > 1 else _NOTHING, tuple(removed) if len(removed) > 1 else _NOTHING


def _compare(old: Any, new: Any, shape: Shape) -> tuple[bool, PathTree, PathTree]:
    """Whether the value itself counts as written, what is written below it, and what is removed below it."""
    kind = new.__class__
    if kind is dict and old.__class__ is dict and old and new and shape.map_type != "atomic":
        return False, *_compare_maps(old, new, shape)
    old_parted, new_parted = has_owned_parts(shape, old), has_owned_parts(shape, new)
    if not old_parted and not new_parted:
        return not json_equal(old, new), _NOTHING, _NOTHING
    if old_parted and new_parted and kind is list and old.__class__ is list:
        return False, *_compare_lists(old, new, shape)
    # One side is an empty container, or the type of the value changed. The value itself counts as written, unless the
    # other side is an empty container of the same type.
    container, other = (new, old) if new_parted else (old, new)
    empty = other is None or (other.__class__ is container.__class__ and not other)
    return not empty, _added(new, shape), _added(old, shape)


def _compare_duplicates(
    before: dict[str, list[Any]], after: dict[str, list[Any]], shape: Shape
) -> tuple[PathTree, PathTree]:
    """Compare list items that share a path element: they are owned together, as one value without parts."""
    inner = shape_of_item(shape)
    written: list[Any] = [None]
    removed: list[Any] = [None]
    for element in before.keys() | after.keys():
        earlier, values = before.get(element, []), after.get(element, [])
        if len(earlier) == len(values) == 1:
            touched, below, gone = _compare(earlier[0], values[0], inner)
            if touched or below:
                written.append((element, below, _TOO) if touched else (element, below))
            if gone:
                removed.append((element, gone))
        elif len(earlier) > 1 and len(values) > 1:
            if not json_equal(earlier, values):
                written.append(element)
        else:
            if values:
                written.append((element, _added(values[0], inner) if len(values) == 1 else _NOTHING, _TOO))
            if earlier:
                removed.append((element, _added(earlier[0], inner) if len(earlier) == 1 else _NOTHING, _TOO))
    return tuple(written), tuple(removed)


def _by_element(values: list[Any], shape: Shape) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for value in values:
        found.setdefault(item_element(shape, value), []).append(value)
    return found


def _added(value: Any, shape: Shape) -> PathTree:
    """The path tree below a new value: everything in it is written."""
    if not has_owned_parts(shape, value):
        return _NOTHING
    if value.__class__ is dict:
        return tuple(
            [
                (name, below, _TOO)
                if (each.__class__ is dict or each.__class__ is list)
                and (below := _added(each, shape.properties.get(name) or shape_of_field(shape, name)))
                else name
                for name, each in value.items()
            ]
        )
    inner = shape_of_item(shape)
    found: list[Any] = [None]
    for element, values in _by_element(value, shape).items():
        below = _added(values[0], inner) if len(values) == 1 else _NOTHING
        found.append((element, below, _TOO) if below else element)
    return tuple(found)


def _applied_tree(value: Any, shape: Shape) -> PathTree:
    """The path tree that an applier of this value owns below it."""
    if not has_owned_parts(shape, value):
        return _NOTHING
    found: list[Any] = []
    if value.__class__ is dict:
        for name, each in value.items():
            declared = name in shape.properties
            kind = each.__class__
            if kind is dict or kind is list:
                inner = shape_of_field(shape, name)
                if has_owned_parts(inner, each):
                    below = _applied_tree(each, inner)
                    found.append((name, below) if declared else (name, below, _TOO))
                    continue
                if declared and kind is list and not is_atomic(inner, list):
                    continue  # an empty set or keyed list has no items to own
            found.append(name)
        return tuple(found)
    inner = shape_of_item(shape)
    found.append(None)
    for element, values in _by_element(value, shape).items():
        below = _applied_tree(values[0], inner) if len(values) == 1 else _NOTHING
        found.append((element, below, _TOO) if below else element)
    return tuple(found)


def json_equal(a: Any, b: Any) -> bool:
    """Whether two JSON values are equal. Numbers are compared by value; unlike in Python, booleans are not numbers."""
    return a is b or (a == b and _same_booleans(a, b))


def _same_booleans(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if isinstance(a, dict):
        return all(_same_booleans(each, b[name]) for name, each in a.items())
    if isinstance(a, list):
        return all(map(_same_booleans, a, b))
    return isinstance(a, bool) is isinstance(b, bool)


_ZEROS: Final = ("", 0, False)


def zero_value(shape: Shape) -> Object:
    """The object of this shape before any field is set.

    Built-in kinds are Go structs in Kubernetes, and a struct contains its inner structs from the start. A client that
    creates a Deployment therefore sets fields *in* ``spec.template.spec`` but does not create that field, and does not
    own it. Custom resources start empty. A shape with a name is that of a built-in kind.
    """
    return _zero_value(shape) if shape.name else {}


@lru_cache(None)
def _zero_value(shape: Shape) -> Object:
    found: Object = {}
    for name, inner in shape.properties.items():
        if inner.zero == "null":
            found[name] = None
        elif inner.default == {}:
            found[name] = _zero_value(inner)
        elif inner.default in _ZEROS and inner.zero != "omit":
            found[name] = inner.default
    return found


def without_scalars(zero_value: Object) -> Object:
    """A zero value as it is written: only its nested objects."""
    return {name: without_scalars(value) for name, value in zero_value.items() if isinstance(value, dict)}
