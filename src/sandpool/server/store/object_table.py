"""All objects of one resource, in memory, sorted on demand.

Lists are sorted by namespace and name, but objects arrive in any order and are written far more often than listed. So
new names go to a small unsorted list, and a list request merges them into the sorted one (Timsort merges two sorted
runs in linear time, which a full list costs anyway). A write costs O(1) regardless of the size of the table.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from sandpool.api.resource import Key
from sandpool.server.store.entry import Entry


def order(key: Key) -> str:
    """The sort key: "namespace/name" as one string, in which a dash sorts before the slash."""
    return f"{key[0]}/{key[1]}"


def _place(namespace: str) -> str:
    return namespace + "/"


class _Namespace:
    __slots__ = ("_arrived", "_departed", "_order", "entries")

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self._order: list[str] = []  # sorted; a superset of the existing names that are not in _arrived
        self._arrived: list[str] = []  # names not in _order yet
        self._departed = 0  # upper bound of removed names in _order

    def put(self, entry: Entry) -> None:
        name = entry.key[1]
        if name not in self.entries:
            self._arrived.append(name)
        self.entries[name] = entry

    def remove(self, name: str) -> None:
        if self.entries.pop(name, None) is not None:
            self._departed += 1

    def names(self) -> list[str]:
        if self._departed > len(self._order) // 2 + 16:
            self._order = sorted(self.entries)
            self._arrived.clear()
            self._departed = 0
        elif self._arrived:
            # A name that was removed and added again is in both lists; sorting makes the duplicates adjacent.
            merged = self._order + sorted(self._arrived)
            merged.sort()
            self._order = list(dict.fromkeys(merged)) if self._departed else merged
            self._arrived.clear()
        return self._order

    def after(self, name: str) -> Iterator[Entry]:
        """Entries with a name greater than the given one, in order."""
        names = self.names()
        if name:
            names = names[bisect_right(names, name) :]
        return filter(None, map(self.entries.get, names))


class ObjectTable:
    def __init__(self) -> None:
        self._namespaces: dict[str, _Namespace] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def get(self, key: Key) -> Entry | None:
        namespace = self._namespaces.get(key[0])
        return namespace.entries.get(key[1]) if namespace is not None else None

    def put(self, entry: Entry) -> None:
        namespace = self._namespaces.get(entry.key[0])
        if namespace is None:
            namespace = self._namespaces[entry.key[0]] = _Namespace()
        before = len(namespace.entries)
        namespace.put(entry)
        self._size += len(namespace.entries) - before

    def remove(self, key: Key) -> None:
        namespace = self._namespaces.get(key[0])
        if namespace is None:
            return
        before = len(namespace.entries)
        namespace.remove(key[1])
        self._size += len(namespace.entries) - before
        if not namespace.entries:
            del self._namespaces[key[0]]

    def count(self, namespace: str | None = None) -> int:
        if namespace is None:
            return self._size
        found = self._namespaces.get(namespace)
        return len(found.entries) if found is not None else 0

    def scan(self, namespace: str | None = None, after: Key | None = None) -> Iterator[Entry]:
        """Entries in order, of one namespace or of all, starting behind a key. The table must not change meanwhile."""
        start_namespace, start_name = after or ("", "")
        start = start_namespace + "/"
        for each in sorted(self._namespaces, key=_place) if namespace is None else (namespace,):
            found = self._namespaces.get(each)
            if found is not None and (after is None or _place(each) >= start):
                yield from found.after(start_name if each == start_namespace else "")
