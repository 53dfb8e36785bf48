"""Interning of equal parts of many objects.

The members of a pool differ in their names and agree in nearly everything else, and a pool may have a hundred thousand.
Decoded one by one, each brings a pod template of its own, which is most of what its view holds. Views therefore keep
the first of equal parts and let the others go. That is safe because parts of objects are never changed.

Only recent parts are remembered, so the memory this takes is bounded: a part that was forgotten and comes again is kept
twice, and nothing else happens.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

import orjson

T = TypeVar("T")
R = TypeVar("R")


class Shared(Generic[T]):
    """Interns up to ``size`` different parts and evicts the oldest first."""

    def __init__(self, size: int) -> None:
        self.size = size
        # Keyed by the JSON encoding, which is much cheaper to compute than a hash of the tree in Python. Parts that
        # differ only in key order are different parts.
        self._known: dict[bytes, T] = {}

    def __call__(self, part: T) -> T:
        """Return the interned part that equals ``part``."""
        if not part:
            return part
        key = orjson.dumps(part)
        known = self._known.get(key)
        if known is not None:
            return known
        if len(self._known) >= self.size:
            del self._known[next(iter(self._known))]
        # Copy the key: the encoder's result keeps its whole buffer, which is several times larger.
        self._known[bytes(memoryview(key))] = part
        return part


class PerPart(Generic[T, R]):
    """Remembers what ``function`` returns for the parts it was called with last, by their identity.

    For functions of interned parts, which all views of one pool share. The entry keeps its part alive, so no other part
    can have the same ``id`` meanwhile.
    """

    def __init__(self, function: Callable[[T], R], size: int) -> None:
        self.function = function
        self.size = size
        self._known: OrderedDict[int, tuple[T, R]] = OrderedDict()

    def __call__(self, part: T) -> R:
        key = id(part)
        known = self._known.get(key)
        if known is not None:
            return known[1]
        result = self.function(part)
        self._known[key] = part, result
        if len(self._known) > self.size:
            self._known.popitem(last=False)
        return result
