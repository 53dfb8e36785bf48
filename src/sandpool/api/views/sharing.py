"""Equal parts of many objects, kept once.

The members of a pool differ in their names and agree in nearly everything else, and a pool may have a hundred thousand.
Decoded one by one, each brings a pod template of its own, which is most of what its view holds. Views therefore keep
the first of equal parts and let the others go. That is safe because parts of objects are never changed.

Only recent parts are remembered, so the memory this takes is bounded: a part that was forgotten and comes again is kept
twice, and nothing else happens.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import orjson

T = TypeVar("T")


class Shared(Generic[T]):
    """``size`` is how many different parts are remembered, the oldest being forgotten first."""

    def __init__(self, size: int) -> None:
        self.size = size
        # By their encoding, which is a far cheaper key than a hash of the tree would be to compute in Python. Two ways
        # to write the same part are two parts.
        self._known: dict[bytes, T] = {}

    def __call__(self, part: T) -> T:
        """A part equal to this one."""
        if not part:
            return part
        key = orjson.dumps(part)
        known = self._known.get(key)
        if known is not None:
            return known
        if len(self._known) >= self.size:
            del self._known[next(iter(self._known))]
        # The encoder gives away its buffer, which is several times larger than what it wrote.
        self._known[bytes(memoryview(key))] = part
        return part
