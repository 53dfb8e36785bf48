"""Sandboxes nobody has yet, per pool, compatibility and node, so that one can be had without looking for it.

A free list serves the node with the most free sandboxes, and nodes with equally many in turns: what is taken spreads
over the nodes, and what is left does, too. On a node the sandbox that has been free longest goes first.

Push, pop and remove are O(1) in sandboxes and in nodes. The fullest node is found the way an LFU cache finds its
victim: nodes stand in ranks by how many they have, a push or pop moves a node one rank, so the highest rank can only
move by one as well. A heap would be O(log nodes) and cannot remove; counting on every pop, which is what others do, is
O(sandboxes). What is emptied from its front is an ``OrderedDict``, because a plain dict walks over the holes.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeAlias

# Namespace and name of an object, whichever type it has; the keys of caches and queues are such pairs.
Key: TypeAlias = tuple[str, str]


class FreeList:
    """The free sandboxes of one pool that are as good as each other."""

    __slots__ = ("_most", "_nodes", "_ranks")

    def __init__(self) -> None:
        # The sandboxes of each node, the one that goes next first. No line is empty.
        self._nodes: dict[str, OrderedDict[Key, None]] = {}
        # Nodes by how many sandboxes they have, the one that is served next first. No rank is empty.
        self._ranks: dict[int, OrderedDict[str, None]] = {}
        # The highest rank there is; 0 if there are no nodes.
        self._most = 0

    def __bool__(self) -> bool:
        return self._most > 0

    def push(self, sandbox: Key, node: str, *, first: bool = False) -> None:
        """The sandbox goes last on its node, or ``first`` if it was only away for a moment. It must not be in yet."""
        line = self._nodes.get(node)
        if line is None:
            line = self._nodes[node] = OrderedDict()
        line[sandbox] = None
        if first:
            line.move_to_end(sandbox, last=False)
        self._move(node, len(line) - 1, len(line))

    def pop(self) -> Key:
        node = next(iter(self._ranks[self._most]))
        line = self._nodes[node]
        sandbox, _ = line.popitem(last=False)
        self._shrunk(node, line)
        return sandbox

    def remove(self, sandbox: Key, node: str) -> None:
        line = self._nodes[node]
        del line[sandbox]
        self._shrunk(node, line)

    def _shrunk(self, node: str, line: OrderedDict[Key, None]) -> None:
        if not line:
            del self._nodes[node]
        self._move(node, len(line) + 1, len(line))

    def _move(self, node: str, before: int, after: int) -> None:
        if before:
            rank = self._ranks[before]
            del rank[node]
            if not rank:
                del self._ranks[before]
        if after:
            self._ranks.setdefault(after, OrderedDict())[node] = None
        if after > self._most or (before == self._most and before not in self._ranks):
            self._most = after


class Stock:
    """The free lists of all pools. ``compatibility`` says which sandboxes are as good as each other; None means any,
    and then those of the oldest kind go first, so that what a template once was is used up."""

    __slots__ = ("_pools",)

    def __init__(self) -> None:
        # By pool and by compatibility, the oldest first. Neither a pool nor a list is empty.
        self._pools: dict[Key, OrderedDict[str, FreeList]] = {}

    def push(self, pool: Key, compatibility: str, node: str, sandbox: Key, *, first: bool = False) -> None:
        lists = self._pools.get(pool)
        if lists is None:
            lists = self._pools[pool] = OrderedDict()
        free = lists.get(compatibility)
        if free is None:
            free = lists[compatibility] = FreeList()
        free.push(sandbox, node, first=first)

    def pop(self, pool: Key, compatibility: str | None) -> Key | None:
        lists = self._pools.get(pool)
        if lists is None:
            return None
        if compatibility is None:
            compatibility = next(iter(lists))
        free = lists.get(compatibility)
        if free is None:
            return None
        sandbox = free.pop()
        self._tidy(pool, compatibility, free)
        return sandbox

    def remove(self, pool: Key, compatibility: str, node: str, sandbox: Key) -> None:
        free = self._pools[pool][compatibility]
        free.remove(sandbox, node)
        self._tidy(pool, compatibility, free)

    def _tidy(self, pool: Key, compatibility: str, free: FreeList) -> None:
        if free:
            return
        lists = self._pools[pool]
        del lists[compatibility]
        if not lists:
            del self._pools[pool]
