"""A cache by JSON text, for what follows from a spec that thousands of objects of one template have in common.

Clients choose what is cached and how large it is. The cache is therefore bounded in text, not in entries, and ignores
large texts. A full cache is emptied: an entry costs one computation, so it need not know which entries were used.

Values are shared by all objects with that text. JSON objects are never changed in place, so that is safe.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

import orjson

from sandpool.api.resource import Object

T = TypeVar("T")

#: The result of an edit that changes nothing. The edit of an equal object then returns that object.
UNCHANGED: Final[Object] = {}


class JsonCache(Generic[T]):
    """Values by the JSON text of an object."""

    BUDGET: Final = 128 << 10  # bytes of text
    LARGEST: Final = 16 << 10

    def __init__(self) -> None:
        self._values: dict[bytes, T] = {}
        self._left = self.BUDGET

    def __len__(self) -> int:
        return len(self._values)

    def get(self, text: bytes) -> T | None:
        return self._values.get(text)

    def put(self, text: bytes, value: T) -> None:
        if len(text) > self.LARGEST:
            return
        self._left -= len(text)
        if self._left < 0:
            self._values = {}
            self._left = self.BUDGET - len(text)
        self._values[text] = value


def text_of(obj: Object) -> bytes:
    """The JSON text of an object; empty if it has none. In contrast to ``==``, it distinguishes 1, 1.0 and true."""
    try:
        return orjson.dumps(obj)
    except TypeError:  # such as an integer of more than 64 bits
        return b""


def once_per_json(function: Callable[[Object], T]) -> Callable[[Object], T]:
    """Remember the results of a pure function of a JSON object, which are never None."""
    cache = JsonCache[T]()

    def remembering(obj: Object) -> T:
        text = text_of(obj)
        result = cache.get(text)
        if result is None:
            result = function(obj)
            if text:
                cache.put(text, result)
        return result

    return remembering


def edited_once_per_json(edit: Callable[[Object], Object]) -> Callable[[Object], Object]:
    """Remember the results of a copy-on-write edit: as before, it returns its argument if nothing changes."""

    def changed(obj: Object) -> Object:
        result = edit(obj)
        return UNCHANGED if result is obj else result

    remembering = once_per_json(changed)

    def edited(obj: Object) -> Object:
        result = remembering(obj)
        return obj if result is UNCHANGED else result

    return edited
