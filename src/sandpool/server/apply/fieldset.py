"""Sets of field paths: what a manager owns, what a write changed.

Thousands of objects of one kind are written in the same few ways, so the same few sets come up again and again. Hence
a ``FieldSet`` is immutable and *interned*: two equal sets are one object. That makes equality an ``is``, lets every
operation remember its answers under the identity of its operands, and lets all objects whose managedFields say the
same share one encoded form. A warm union, difference or intersection costs one dictionary lookup whatever its size;
a cold one descends only into the parts that differ, because the parts of a set are sets and remembered themselves.

A set is a trie. A node has ``members``, the elements that are in the set at this depth, and ``children``, the elements
below which more is. One does not imply the other: owning ``spec.replicas`` is not owning ``spec``. No child is ever
empty, which is what makes the form unique.

Interned sets are held weakly, the memories are bounded: sets that nobody uses any more go away.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from weakref import WeakValueDictionary

import orjson

from sandpool.server.apply import path_elements
from sandpool.server.apply.caches import OVERHEAD, cached, charge

# Each remembered answer is a few hundred bytes; kinds times ways to write them is in the hundreds.
CACHE_SIZE: Final = 1 << 13

Path = tuple[str, ...]


class InvalidFieldsV1(ValueError):
    """A fieldsV1 value that cannot be read."""


class FieldSet:
    """Get one from ``make``, ``of`` or ``decode``, never from the class: equal sets must be the same object."""

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
        """Exactly the paths of ``other`` taken away; what is below one of them stays."""
        if other is EMPTY or self is EMPTY:
            return self
        return EMPTY if self is other else _difference(self, other)

    def __le__(self, other: FieldSet) -> bool:
        return self - other is EMPTY

    def without(self, other: FieldSet) -> FieldSet:
        """The paths of ``other`` taken away together with everything below them."""
        return self if other is EMPTY or self is EMPTY else _recursive_difference(self, other)

    def __contains__(self, path: Path) -> bool:
        node: FieldSet | None = self
        for element in path[:-1]:
            node = node.children.get(element) if node is not None else None
        return node is not None and bool(path) and path[-1] in node.members

    def __iter__(self) -> Iterator[Path]:
        """All paths in the canonical order: at each depth the members, then what is below them."""
        for element in sorted(self.members, key=path_elements.sort_key):
            yield (element,)
        for element in sorted(self.children, key=path_elements.sort_key):
            for path in self.children[element]:
                yield (element, *path)

    def __repr__(self) -> str:
        return "{" + ", ".join("".join(map(path_elements.text, path)) for path in self) + "}"

    @property
    def branches(self) -> tuple[tuple[Path, frozenset[str]], ...]:
        """The set without its nesting: the members wherever there are some, each time with the path to them."""
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
        """The fieldsV1 form in its canonical order. It is made once and shared: do not change it."""
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
    """The set with these elements, and below these elements these sets."""
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

SELF: Final = "."  # "this element itself is a member", said below an element that has children
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
    """The set of a fieldsV1 value. Raises BadFields.

    Sets are remembered under their text, which is quickly made, and so are their parts: objects of one kind differ in
    the names of their owners and little else, and what they have in common is decoded once and not once each."""
    if not isinstance(fields, dict):
        raise InvalidFieldsV1("fieldsV1 must be an object")
    return _decode(orjson.dumps(fields))[0]


@cached(CACHE_SIZE)
def _decode(text: bytes) -> tuple[FieldSet, bool]:
    """What is below an element, and whether the element itself is a member; it is if nothing else is said."""
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
