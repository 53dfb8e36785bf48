"""Sets of field paths: the fields that a manager owns or that a write changed.

Thousands of objects of one kind are written in the same few ways, so the same few sets recur. A ``FieldSet`` is
therefore immutable and *interned*: two equal sets are one object. Equality is ``is``, every operation caches results by
the identity of its operands, and all objects with the same managedFields share one encoded form. A union,
difference or intersection that is cached costs one dictionary lookup whatever its size. One that is not descends only
into the parts that differ, because the parts of a set are sets and cached themselves.

A set is a trie. A node has ``members``, the elements that are in the set at this depth, and ``children``, the elements
with a subtree. One does not imply the other: owning ``spec.replicas`` is not owning ``spec``. No child is ever empty,
which makes the representation unique.

Interned sets are held weakly and the caches are bounded, so unused sets are freed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from weakref import WeakValueDictionary

import orjson

from sandpool.server.apply import path_elements
from sandpool.server.apply.caches import OVERHEAD, cached, charge

# A cached result is a few hundred bytes; the number of kinds times the ways to write them is in the hundreds.
CACHE_SIZE: Final = 1 << 13

Path = tuple[str, ...]


class InvalidFieldsV1(ValueError):
    """A malformed fieldsV1 value."""


class FieldSet:
    """An interned set of paths. Create it with ``make``, ``of`` or ``decode``: equal sets must be the same object."""

    __slots__ = ("__weakref__", "_branches", "_fields", "children", "members")

    members: frozenset[str]
    children: Mapping[str, FieldSet]
    _fields: dict[str, Any] | None
    _branches: tuple[tuple[Path, frozenset[str]], ...] | None

    def __bool__(self) -> bool:
        return self is not EMPTY

    def __or__(self, other: FieldSet) -> FieldSet:
        if self is other or other is EMPTY:
            return self
        return other if self is EMPTY else _union(self, other)

    def __and__(self, other: FieldSet) -> FieldSet:
        if self is other or self is EMPTY:
            return self
        return other if other is EMPTY else _intersection(self, other)

    def __sub__(self, other: FieldSet) -> FieldSet:
        """Remove exactly the paths of ``other``; paths below them stay."""
        if other is EMPTY or self is EMPTY:
            return self
        return EMPTY if self is other else _difference(self, other)

    def __le__(self, other: FieldSet) -> bool:
        return self - other is EMPTY

    def without(self, other: FieldSet) -> FieldSet:
        """Remove the paths of ``other`` together with everything below them."""
        return self if other is EMPTY or self is EMPTY else _recursive_difference(self, other)

    def __contains__(self, path: Path) -> bool:
        node: FieldSet | None = self
        for element in path[:-1]:
            node = node.children.get(element) if node is not None else None
        return node is not None and bool(path) and path[-1] in node.members

    def __iter__(self) -> Iterator[Path]:
        """All paths in canonical order: at each depth the members first, then the children."""
        for element in sorted(self.members, key=path_elements.sort_key):
            yield (element,)
        for element in sorted(self.children, key=path_elements.sort_key):
            for path in self.children[element]:
                yield (element, *path)

    def __repr__(self) -> str:
        return "{" + ", ".join("".join(map(path_elements.text, path)) for path in self) + "}"

    @property
    def branches(self) -> tuple[tuple[Path, frozenset[str]], ...]:
        """The nodes that have members, each as the path to it and its members."""
        if self._branches is None:
            here: tuple[tuple[Path, frozenset[str]], ...] = (((), self.members),) if self.members else ()
            self._branches = here + tuple(
                ((element, *path), members)
                for element, below in self.children.items()
                for path, members in below.branches
            )
        return self._branches

    @property
    def fields(self) -> dict[str, Any]:
        """The fieldsV1 form in canonical order. It is computed once and shared: do not modify it."""
        if self._fields is None:
            self._fields = _encode(self)
        return self._fields


_interned: WeakValueDictionary[tuple[frozenset[str], frozenset[tuple[str, FieldSet]]], FieldSet] = WeakValueDictionary()


def _intern(members: frozenset[str], children: dict[str, FieldSet]) -> FieldSet:
    identity = members, frozenset(children.items())
    found = _interned.get(identity)
    if found is None:
        found = FieldSet()
        found.members = members
        found.children = children
        found._fields = None
        found._branches = None
        _interned[identity] = found
        size = sum(map(len, members)) + sum(map(len, children))
        charge(size + OVERHEAD * (len(members) + len(children)))
    return found


EMPTY: Final = _intern(frozenset(), {})


def make(members: Iterable[str], children: Mapping[str, FieldSet]) -> FieldSet:
    """The set with these members and these non-empty children."""
    return _intern(frozenset(members), {element: below for element, below in children.items() if below is not EMPTY})


def of(*paths: Path) -> FieldSet:
    found = EMPTY
    for path in paths:
        below = EMPTY
        for depth, element in enumerate(reversed(path)):
            below = make((), {element: below}) if depth else make((element,), {})
        found |= below
    return found


@cached(CACHE_SIZE)
def _union(a: FieldSet, b: FieldSet) -> FieldSet:
    children = dict(a.children)
    for element, below in b.children.items():
        mine = children.get(element)
        children[element] = below if mine is None else mine | below
    return _intern(a.members | b.members, children)


@cached(CACHE_SIZE)
def _intersection(a: FieldSet, b: FieldSet) -> FieldSet:
    shared = a.children.keys() & b.children.keys()
    return make(a.members & b.members, {element: a.children[element] & b.children[element] for element in shared})


@cached(CACHE_SIZE)
def _difference(a: FieldSet, b: FieldSet) -> FieldSet:
    taken = b.children.get
    return make(a.members - b.members, {each: below - taken(each, EMPTY) for each, below in a.children.items()})


@cached(CACHE_SIZE)
def _recursive_difference(a: FieldSet, b: FieldSet) -> FieldSet:
    taken = b.children.get
    return make(
        a.members - b.members,
        {each: below.without(taken(each, EMPTY)) for each, below in a.children.items() if each not in b.members},
    )


# Encoding

SELF: Final = "."  # among the children of an element: the element itself is a member, too
_NOTHING: Final[dict[str, Any]] = {}


def _encode(fields: FieldSet) -> dict[str, Any]:
    encoded: dict[str, Any] = {}
    for element in sorted(fields.members | fields.children.keys(), key=path_elements.sort_key):
        below = fields.children.get(element)
        if below is None:
            encoded[element] = _NOTHING
        elif element in fields.members:
            encoded[element] = {SELF: _NOTHING, **below.fields}
        else:
            encoded[element] = below.fields
    return encoded


def decode(fields: Any) -> FieldSet:
    """Decode a fieldsV1 value. Raises InvalidFieldsV1.

    Sets and their parts are cached by their JSON text, which is cheap to produce. Objects of one kind differ in few
    parts, so most parts are decoded once and not once per object.
    """
    if not isinstance(fields, dict):
        raise InvalidFieldsV1("fieldsV1 must be an object")
    return _decode(orjson.dumps(fields))[0]


@cached(CACHE_SIZE)
def _decode(text: bytes) -> tuple[FieldSet, bool]:
    """The set below an element, and whether the element itself is a member, as it is if its value is empty."""
    charge(len(text))
    fields = orjson.loads(text)
    if not isinstance(fields, dict):
        raise InvalidFieldsV1("fieldsV1 must be made of objects")
    members: list[str] = []
    children: dict[str, FieldSet] = {}
    for name, inner in fields.items():
        if name == SELF:
            continue
        try:
            element = path_elements.canonical(name)
        except path_elements.InvalidPathElement as error:
            raise InvalidFieldsV1(f"parsing key as path element: {error}") from None
        if element is None:
            continue
        below, is_member = (EMPTY, True) if inner == {} else _decode(orjson.dumps(inner))
        if is_member:
            members.append(element)
        if below:
            children[element] = below
    found = _intern(frozenset(members), children)
    return found, SELF in fields or not found
