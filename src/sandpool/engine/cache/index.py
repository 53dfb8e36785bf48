"""Views by something other than their name: by owner, by pool, by template.

An index answers in the time it takes to return the answer, however many objects there are; walking all of them to find
a pool's members is what made the cost of a claim grow with the size of the cluster. It is kept up to date view by view.
Answers come in the order in which the objects were first seen under that value, so that a replay decides the same.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

V = TypeVar("V")


class Index(Generic[V]):
    """``values`` gives what a view is to be found by: none, one or several values. It must depend on nothing else."""

    __slots__ = ("_buckets", "values")

    def __init__(self, values: Callable[[V], Iterable[Hashable]]) -> None:
        self.values = values
        # By value, then by the key of the object. No bucket is empty.
        self._buckets: dict[Hashable, dict[Hashable, V]] = {}

    def get(self, value: Hashable) -> tuple[V, ...]:
        bucket = self._buckets.get(value)
        return tuple(bucket.values()) if bucket is not None else ()

    def count(self, value: Hashable) -> int:
        bucket = self._buckets.get(value)
        return len(bucket) if bucket is not None else 0

    def __len__(self) -> int:
        """How many values there are."""
        return len(self._buckets)

    def of(self, view: V | None) -> tuple[Hashable, ...]:
        """The values of a view, each once."""
        return tuple(dict.fromkeys(self.values(view))) if view is not None else ()

    def move(self, key: Hashable, before: tuple[Hashable, ...], after: tuple[Hashable, ...], view: V | None) -> None:
        """From now on ``key`` is found by ``after`` instead of ``before``, and what is found is ``view``."""
        for value in before:
            if value not in after:
                bucket = self._buckets[value]
                del bucket[key]
                if not bucket:
                    del self._buckets[value]
        if view is not None:
            for value in after:
                self._buckets.setdefault(value, {})[key] = view
