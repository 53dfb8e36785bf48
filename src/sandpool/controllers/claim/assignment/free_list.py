"""Free lists: unassigned sandboxes per pool, compatibility and node.

A free list serves the node with the most free sandboxes, and nodes with equally many in turn. So both the assigned and
the remaining sandboxes spread over the nodes. On a node the sandbox that has been free longest goes first.
Deprioritized nodes are served when there are no others.

Push, pop and remove are O(1) in sandboxes and in nodes. The fullest node is found the way an LFU cache finds its
victim: nodes are in ranks by number of free sandboxes, a push or pop moves a node by one rank, so the highest rank also
moves by one at most. A heap would be O(log nodes) and cannot remove; counting at every pop is O(sandboxes). Containers
that are emptied from the front are ``OrderedDict``, because a plain dict walks over its holes. A node that becomes or
ceases to be deprioritized moves with all its sandboxes at once, from one set of ranks to the other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Set

from sandpool.api.resource import Key


class _Ranks:
    """Nodes by how many sandboxes they have."""

    __slots__ = ("_most", "_ranks")

    def __init__(self) -> None:
        # Within a rank the node that is served next is first. No rank is empty.
        self._ranks: dict[int, OrderedDict[str, None]] = {}
        # The highest rank; 0 without nodes.
        self._most = 0

    def __bool__(self) -> bool:
        return self._most > 0

    def next(self) -> str:
        """The node that is served next."""
        return next(iter(self._ranks[self._most]))

    def step(self, node: str, before: int, after: int) -> None:
        """Move a node that has one sandbox more or less than before."""
        if before:
            rank = self._ranks[before]
            del rank[node]
            if not rank:
                del self._ranks[before]
        if after:
            self._ranks.setdefault(after, OrderedDict())[node] = None
        if after > self._most or (before == self._most and before not in self._ranks):
            self._most = after

    def add(self, node: str, count: int) -> None:
        self._ranks.setdefault(count, OrderedDict())[node] = None
        self._most = max(self._most, count)

    def remove(self, node: str, count: int) -> None:
        rank = self._ranks[count]
        del rank[node]
        if not rank:
            del self._ranks[count]
            if count == self._most:
                self._most = max(self._ranks, default=0)


class FreeList:
    """Equivalent free sandboxes of one pool. Nodes in ``deprioritized`` are served last; the
    owner of that set calls ``deprioritize`` or ``restore``."""

    __slots__ = ("_deprioritized", "_nodes", "_preferred", "deprioritized")

    def __init__(self, deprioritized: Set[str] = frozenset()) -> None:
        self.deprioritized = deprioritized
        # The sandboxes of each node, the one that goes next first. No line is empty.
        self._nodes: dict[str, OrderedDict[Key, None]] = {}
        # Every node is in one of these, by whether it is in ``deprioritized``.
        self._preferred = _Ranks()
        self._deprioritized = _Ranks()

    def __bool__(self) -> bool:
        return bool(self._nodes)

    @property
    def has_preferred(self) -> bool:
        """Whether there is a sandbox on a node that is not avoided."""
        return bool(self._preferred)

    def push(self, sandbox: Key, node: str, *, first: bool = False) -> None:
        """Add a sandbox last on its node, or ``first`` if its lease was returned. It must not be in the list."""
        line = self._nodes.get(node)
        if line is None:
            line = self._nodes[node] = OrderedDict()
        line[sandbox] = None
        if first:
            line.move_to_end(sandbox, last=False)
        self._ranks_of(node).step(node, len(line) - 1, len(line))

    def pop(self) -> Key:
        node = (self._preferred or self._deprioritized).next()
        line = self._nodes[node]
        sandbox, _ = line.popitem(last=False)
        self._shrunk(node, line)
        return sandbox

    def remove(self, sandbox: Key, node: str) -> None:
        line = self._nodes[node]
        del line[sandbox]
        self._shrunk(node, line)

    def deprioritize(self, node: str) -> None:
        """Follow the addition of a node to ``deprioritized``."""
        if line := self._nodes.get(node):
            self._preferred.remove(node, len(line))
            self._deprioritized.add(node, len(line))

    def restore(self, node: str) -> None:
        """Follow the removal of a node from ``deprioritized``."""
        if line := self._nodes.get(node):
            self._deprioritized.remove(node, len(line))
            self._preferred.add(node, len(line))

    def _ranks_of(self, node: str) -> _Ranks:
        return self._deprioritized if node in self.deprioritized else self._preferred

    def _shrunk(self, node: str, line: OrderedDict[Key, None]) -> None:
        if not line:
            del self._nodes[node]
        self._ranks_of(node).step(node, len(line) + 1, len(line))


class FreeLists:
    """The free lists of all pools. Sandboxes with equal ``compatibility`` are interchangeable. None accepts any of them
    and prefers the oldest revision, so that members of former templates are used up first."""

    __slots__ = ("_deprioritized", "_pools")

    def __init__(self) -> None:
        # By pool and by compatibility, the oldest first. Neither a pool nor a list is empty.
        self._pools: dict[Key, OrderedDict[str, FreeList]] = {}
        # Nodes that all lists serve last.
        self._deprioritized: set[str] = set()

    def push(self, pool: Key, compatibility: str, node: str, sandbox: Key, *, first: bool = False) -> None:
        lists = self._pools.get(pool)
        if lists is None:
            lists = self._pools[pool] = OrderedDict()
        free = lists.get(compatibility)
        if free is None:
            free = lists[compatibility] = FreeList(self._deprioritized)
        free.push(sandbox, node, first=first)

    def pop(self, pool: Key, compatibility: str | None) -> Key | None:
        lists = self._pools.get(pool)
        if lists is None:
            return None
        if compatibility is None:
            oldest = next(iter(lists))
            compatibility = next((kind for kind, free in lists.items() if free.has_preferred), oldest)
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

    def deprioritize(self, node: str) -> None:
        """Serve the node last from now on. Costs O(pools); it happens only when a node has a problem."""
        if node not in self._deprioritized:
            self._deprioritized.add(node)
            for free in self._lists():
                free.deprioritize(node)

    def restore(self, node: str) -> None:
        """Serve the node like any other again."""
        if node in self._deprioritized:
            self._deprioritized.discard(node)
            for free in self._lists():
                free.restore(node)

    def _lists(self) -> list[FreeList]:
        return [free for lists in self._pools.values() for free in lists.values()]

    def _tidy(self, pool: Key, compatibility: str, free: FreeList) -> None:
        if free:
            return
        lists = self._pools[pool]
        del lists[compatibility]
        if not lists:
            del self._pools[pool]
