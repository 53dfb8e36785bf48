"""Strategic merge patch: a merge patch that uses the type to merge lists by key instead of replacing them.

The type's ``Shape`` defines which lists merge and their merge key. Directives in the patch control the rest:

    $patch: delete | replace                 on an object, or on an element of a list that merges by key
    $retainKeys: [names]                     the object keeps only these members (a union changes its kind)
    $setElementOrder/<list>: [elements]      the new order of the list; other elements keep their order
    $deleteFromPrimitiveList/<list>: [...]   elements to remove from a list of plain values

The order of a merged list comes from ``$setElementOrder``, else from the patch, else from the existing list. A value
that the patch adds loses its nulls and its objects with ``$patch``. An invalid patch is rejected with kube-apiserver's
messages and codes, which are mostly 500.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sandpool.api.resource import Object
from sandpool.api.schema.shape import Shape
from sandpool.kube.errors import TOO_DEEP, MalformedPatch, UnworkablePatch
from sandpool.kube.gotext import go_string, go_type, go_value
from sandpool.kube.sharing import shared, without_nulls

_PATCH = "$patch"
_RETAIN_KEYS = "$retainKeys"
_SET_ORDER = "$setElementOrder"
_DELETE_FROM = "$deleteFromPrimitiveList"

_DROPPED: Any = object()


def strategic_merge_patch(target: Object, patch: Any, shape: Shape) -> Object:
    """Apply the patch. Returns ``target`` itself if the patch changes nothing."""
    if patch is None:
        return target
    if not isinstance(patch, dict):
        raise MalformedPatch.wrong_type(patch, "value", "map[string]interface {}", doing="")
    try:
        patched: Object = shared(target, _merge_objects(target, patch, shape))
    except RecursionError:
        raise MalformedPatch(TOO_DEEP) from None
    return patched


def _merge_objects(target: Object, patch: Object, shape: Shape | None) -> Object:
    if _PATCH in patch:
        return _directed(patch)
    merged, patch = dict(target), dict(patch)
    _retain_keys(merged, patch)
    _set_orders(merged, patch, shape)
    for name, change in patch.items():
        removing = name.startswith(_DELETE_FROM)
        if removing:
            name = _listed(name, _DELETE_FROM, "invalid patch format of primitive list") or name
        if change is None:
            merged.pop(name, None)
        elif type(merged.get(name)) is not type(change):
            if not removing:
                _put(merged, name, change)
        elif isinstance(change, dict):
            merged[name] = _merge_member(merged[name], change, _member(shape, name))
        elif not isinstance(change, list):
            merged[name] = change
        elif removing:
            merged[name] = _without(merged[name], change)
        else:
            merged[name] = _merge_lists(merged[name], change, _member(shape, name))
    return merged


def _directed(patch: Object) -> Object:
    """Carry out ``$patch``, which does not depend on the existing object."""
    directive = patch[_PATCH]
    if directive == "delete":
        return {}
    if directive == "replace":
        replacement: Object = without_nulls({name: value for name, value in patch.items() if name != _PATCH})
        return replacement
    raise UnworkablePatch(f"unknown patch type: {go_string(directive)} in map: {go_value(patch)}")


def _retain_keys(merged: Object, patch: Object) -> None:
    """Carry out ``$retainKeys``: drop all members that it does not list. The patch may set only listed members."""
    if _RETAIN_KEYS not in patch:
        return
    listed = patch.pop(_RETAIN_KEYS)
    retained = {name for name in listed if isinstance(name, str)} if isinstance(listed, list) else None
    sets = {
        name for name, value in patch.items() if value is not None and not name.startswith((_DELETE_FROM, _SET_ORDER))
    }
    if retained is None or not sets <= retained:
        raise MalformedPatch("invalid patch format of retainKeys")
    for name in merged.keys() - retained:
        del merged[name]


def _set_orders(merged: Object, patch: Object, shape: Shape | None) -> None:
    """Carry out each ``$setElementOrder`` together with its list, and remove both from the patch."""
    for directive in [name for name in patch if name.startswith(_SET_ORDER)]:
        order = _list(patch.pop(directive))
        name = _listed(directive, _SET_ORDER, "invalid patch format of setElementOrder list")
        before = _list(merged[name]) if name in merged else None
        change = _list(patch.pop(name)) if name in patch else None
        member = _member(shape, name)
        if member is None:
            struct = shape.name.rpartition(".")[2] if shape else ""
            raise UnworkablePatch(f'unable to find api field in struct {struct} for the json field "{name}"')
        key = member.patch_merge_key
        _check_order(change or [], order, key)
        if before is None and change is None:
            continue
        if before is None:
            items = _fresh(change)
        elif change is None:
            items = before
        else:
            items = _merge_lists(before, change, member)
        _check_elements(before or [], change or [])
        merged[name] = _ordered(items, order, before or [], key)


def _member(shape: Shape | None, name: str) -> Shape | None:
    """The shape of an object member or map value; None if the type does not define it."""
    return (shape.properties.get(name) or shape.additional) if shape else None


def _merge_member(target: Object, patch: Object, shape: Shape | None) -> Object:
    if shape is not None and "replace" in shape.patch_strategy.split(","):
        replacement: Object = without_nulls(patch)
        return replacement
    return _merge_objects(target, patch, shape)


def _merge_lists(target: list[Any], patch: list[Any], shape: Shape | None) -> list[Any]:
    if shape is None or "merge" not in shape.patch_strategy.split(","):
        replacement: list[Any] = without_nulls(patch)
        return replacement
    if not target and not patch:
        return target
    if not _check_elements(target, patch):
        seen = {_identity(item) for item in target}
        added = [item for item in dict.fromkeys(patch) if _identity(item) not in seen]
        return _ordered([*target, *added], patch, target, "")
    if not shape.patch_merge_key:
        raise UnworkablePatch("cannot merge lists without merge key for struct")
    return _merge_keyed(target, patch, shape.patch_merge_key, shape.items)


def _merge_keyed(target: list[Object], patch: list[Object], key: str, shape: Shape | None) -> list[Object]:
    """Merge lists of objects. Elements with the same value of ``key`` are the same element."""
    plain, deleted, replacing = _read_directives(patch, key)
    if replacing:
        return plain
    if deleted:
        target = [item for item in target if key not in item or _identity(item[key]) not in deleted]
    merged = list(target)
    places: dict[Any, int] = {}
    for place, item in enumerate(merged):
        if key in item:
            places.setdefault(_identity(item[key]), place)
    for item in plain:
        identity = _identity(_key_of(item, key))
        if identity in places:
            merged[places[identity]] = _merge_objects(merged[places[identity]], item, shape)
        else:
            places[identity] = len(merged)
            merged.append(without_nulls(item))
    return _ordered(merged, plain, target, key)


def _read_directives(patch: list[Object], key: str) -> tuple[list[Object], set[Any], bool]:
    """Split a patch list: elements without directive, keys to delete, and whether it replaces the list."""
    plain: list[Object] = []
    deleted: set[Any] = set()
    replacing = False
    for item in patch:
        directive = item.get(_PATCH)
        if _PATCH not in item:
            plain.append(item)
        elif directive == "delete":
            deleted.add(_identity(_key_of(item, key)))
        elif directive == "replace":
            replacing = True
        elif directive == "merge":
            raise UnworkablePatch("merging lists cannot yet be specified in the patch")
        else:
            raise UnworkablePatch(f"unknown patch type: {go_string(directive)} in map: {go_value(item)}")
    return plain, deleted, replacing


def _ordered(items: list[Any], first: Sequence[Any], before: Sequence[Any], key: str) -> list[Any]:
    """Sort the items of ``first`` in that order, and the others in their order in ``before``.

    The two sequences are interleaved as in ``before`` where both orders allow it: an old item precedes the next item
    of ``first`` only if it did so before. Items in neither list go last; their position is random in Kubernetes.
    """
    wanted, was = _places(first, key), _places(before, key)
    named = [item for item in items if _element(item, key) in wanted]
    rest = [item for item in items if _element(item, key) not in wanted]
    named.sort(key=lambda item: wanted[_element(item, key)])
    rest.sort(key=lambda item: was.get(_element(item, key), len(was)))
    ordered: list[Any] = []
    waiting = iter(rest)
    old = next(waiting, _DROPPED)
    for item in named:
        place = was.get(_element(item, key))
        while old is not _DROPPED and place is not None and was.get(_element(old, key), place) < place:
            ordered.append(old)
            old = next(waiting, _DROPPED)
        ordered.append(item)
    if old is not _DROPPED:
        ordered += [old, *waiting]
    return ordered


def _places(items: Iterable[Any], key: str) -> dict[Any, int]:
    places: dict[Any, int] = {}
    for place, item in enumerate(items):
        if key and not isinstance(item, dict):
            raise UnworkablePatch(f"value for key {place} is not a map")
        places.setdefault(_element(item, key), place)
    return places


def _check_order(patch: list[Any], order: list[Any], key: str) -> None:
    """Raise unless the elements of the patch are a subsequence of ``$setElementOrder``."""
    if not patch or not order:
        return
    kept = [item for item in patch if _map(item).get(_PATCH) != "delete"] if key else patch
    place = 0
    for other in order:
        while place < len(kept) and isinstance(kept[place], dict) and _PATCH in kept[place]:
            place += 1
        if place == len(kept):
            return
        if _element(kept[place], key) == _element(other, key):
            place += 1
    if place < len(kept):
        raise UnworkablePatch(
            f"The order in patch list:\n{go_value(patch)}\n doesn't match {_SET_ORDER} list:\n{go_value(order)}\n"
        )


def _check_elements(*lists: list[Any]) -> bool:
    """Raise unless all elements have the same type. Returns whether they are objects."""
    types = [type(item) for items in lists for item in items]
    if not types:
        raise UnworkablePatch("no elements in any of the given slices")
    if types[0] is list:
        raise UnworkablePatch("lists of lists are not supported")
    if types[0] is type(None) or any(found is not types[0] for found in types):
        raise UnworkablePatch(f"list element types are not identical: {go_value(list(lists))}")
    return types[0] is dict


def _without(target: list[Any], removed: list[Any]) -> list[Any]:
    if (target or removed) and _check_elements(target, removed):
        raise UnworkablePatch("cannot merge lists without merge key for struct")
    gone = {_identity(item) for item in removed}
    return [item for item in target if _identity(item) not in gone]


def _put(merged: Object, name: str, value: Any) -> None:
    """Set a member that was absent or had another type. A value that is only a directive removes the member."""
    fresh = _fresh(value)
    if fresh is _DROPPED:
        merged.pop(name, None)
    else:
        merged[name] = fresh


def _fresh(value: Any) -> Any:
    """A value of the patch that replaces an absent value, without nulls and directives."""
    if isinstance(value, dict):
        if _PATCH in value:
            return _DROPPED
        members = {name: _fresh(member) for name, member in value.items() if member is not None}
        return {name: member for name, member in members.items() if member is not _DROPPED}
    if isinstance(value, list):
        return [item for item in map(_fresh, value) if item is not _DROPPED]
    return value


def _element(item: Any, key: str) -> Any:
    """Identity of a list element: the value of its merge key, or the primitive value itself."""
    return _identity(_key_of(item, key) if key else item)


def _key_of(item: Any, key: str) -> Any:
    if key not in _map(item):
        raise UnworkablePatch(f"map: {go_value(item)} does not contain declared merge key: {key}")
    return item[key]


def _identity(value: Any) -> Any:
    """Hashable that is equal only for the same JSON value; in Python ``1 == True``."""
    if isinstance(value, dict | list):
        raise UnworkablePatch(f"runtime error: comparing uncomparable type {go_type(value)}")
    return type(value), value


def _listed(directive: str, prefix: str, problem: str) -> str:
    """The name of the list in a directive."""
    found, slash, name = directive.partition("/")
    if found != prefix or not slash:
        raise MalformedPatch(problem)
    return name


def _map(value: Any) -> Object:
    if not isinstance(value, dict):
        raise UnworkablePatch(f"expected a map[string]interface {{}}, but received a {go_type(value)}")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise UnworkablePatch(f"expected a []interface {{}}, but received a {go_type(value)}")
    return value
