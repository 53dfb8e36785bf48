"""Index of a cache: views by owner, by pool, by template.

A lookup is O(size of the result), whatever the number of objects; scanning all objects for the members of a pool would
make the cost of a claim grow with the size of the cluster. An index is updated view by view. Results come in the order
in which the objects were first seen under the value, so that a replay takes the same decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

V = TypeVar("V")


class Index(Generic[V]):
    """``values`` returns the values under which a view is found: any number. It must depend on the view only."""

    __slots__ = ("_buckets", "fields", "values")

    def __init__(self, values: Callable[[V], Iterable[Hashable]], fields: frozenset[str] = frozenset()) -> None:
        self.values = values
        self.fields = fields  # the only ones that ``values`` reads; empty if it does not declare them
        # By value, then by the key of the object. No bucket is empty.
        self._buckets: dict[Hashable, dict[Hashable, V]] = {}

    def get(self, value: Hashable) -> tuple[V, ...]:
        bucket = self._buckets.get(value)
        return tuple(bucket.values()) if bucket is not None else ()

    def count(self, value: Hashable) -> int:
        bucket = self._buckets.get(value)
        return len(bucket) if bucket is not None else 0

    def __len__(self) -> int:
        """Number of distinct values."""
        return len(self._buckets)

    def of(self, view: V | None) -> tuple[Hashable, ...]:
        """The values of a view, each once."""
        if view is None:
            return ()
        values = tuple(self.values(view))
        return values if len(values) < 2 else tuple(dict.fromkeys(values))

    def replace(self, key: Hashable, values: tuple[Hashable, ...], view: V) -> None:
        """Store another view under the same values."""
        for value in values:
            self._buckets[value][key] = view

    def move(self, key: Hashable, before: tuple[Hashable, ...], after: tuple[Hashable, ...], view: V | None) -> None:
        """Move ``key`` from the values ``before`` to the values ``after``, and store ``view`` there."""
        for value in before:
            if value not in after:
                bucket = self._buckets[value]
                del bucket[key]
                if not bucket:
                    del self._buckets[value]
        if view is not None:
            for value in after:
                self._buckets.setdefault(value, {})[key] = view
