"""Bounds the memory of responses whose clients do not read them.

A response waits for its client in small pieces, so each holds little: the write buffer, the piece that comes next and
the object that it belongs to. A client that opens thousands of them and reads none still holds much. So every response
that waits is counted, per user and in all:

* its buffers, which are its own, and
* the encoded object that it is sending. Watches share it, so it counts once per user.

When a user holds more than ``limits.unread_bytes_per_user``, or all users together more than ``limits.unread_bytes``,
the response that has waited longest is dropped: of that user, or of the one who holds most. One response per user may
always wait, however large it is. Its client connects again and resumes or lists again.

A list, and the initial events of a watch, hold objects of the store. That costs nothing until the store replaces them.
A response that waits while more than ``limits.unread_superseded_bytes`` are replaced is dropped by ``sweep``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sandpool.server.http.limits import HttpLimits


class UnreadResponse:
    """A response that waits for its client."""

    __slots__ = ("drop", "holds_since", "own", "shared", "user")

    def __init__(
        self, user: str, own: int, shared: bytes | None, holds_since: int | None, drop: Callable[[], None]
    ) -> None:
        self.user = user
        self.own = own  # bytes of its buffers
        self.shared = shared  # the object that is being sent
        self.holds_since = holds_since  # ``superseded`` when it found the objects that it holds; None: it holds none
        self.drop = drop


class _UserShare:
    """The bytes that the waiting responses of one user hold."""

    __slots__ = ("bytes", "responses", "shared")

    def __init__(self) -> None:
        self.bytes = 0
        self.responses: dict[UnreadResponse, None] = {}  # in the order of waiting
        self.shared: dict[int, int] = {}  # how many responses hold an object, by its identity


class UnreadBytes:
    """The responses that wait. ``superseded`` counts the bytes that the store has replaced so far."""

    def __init__(self, limits: HttpLimits, superseded: Callable[[], int]) -> None:
        self._limits = limits
        self.superseded = superseded
        self._users: dict[str, _UserShare] = {}
        self.total = 0

    def of(self, user: str) -> int:
        """Bytes that the waiting responses of a user hold."""
        share = self._users.get(user)
        return share.bytes if share is not None else 0

    @contextmanager
    def waiting(self, response: UnreadResponse) -> Iterator[None]:
        """Count a response while it waits. May drop it, or others."""
        share = self._users.setdefault(response.user, _UserShare())
        share.responses[response] = None
        self._count(share, self._added(share, response))
        try:
            if share.bytes > self._limits.unread_bytes_per_user:
                self._drop_from(share, self._limits.unread_bytes_per_user)
            if self.total > self._limits.unread_bytes:
                heaviest = max(self._users.values(), key=lambda each: each.bytes)
                self._drop_from(heaviest, heaviest.bytes - (self.total - self._limits.unread_bytes))
            yield
        finally:
            self._remove(response)

    def sweep(self) -> None:
        """Drop responses that hold too much of what the store has replaced meanwhile."""
        oldest = self.superseded() - self._limits.unread_superseded_bytes
        waiting = [response for share in self._users.values() for response in share.responses]
        for response in waiting:
            if response.holds_since is not None and response.holds_since < oldest:
                self._drop(response)

    def _drop_from(self, share: _UserShare, allowed: int) -> None:
        while share.bytes > allowed and len(share.responses) > 1:
            self._drop(next(iter(share.responses)))

    def _drop(self, response: UnreadResponse) -> None:
        self._remove(response)
        response.drop()

    def _remove(self, response: UnreadResponse) -> None:
        share = self._users.get(response.user)
        if share is None or response not in share.responses:
            return
        del share.responses[response]
        self._count(share, -self._removed(share, response))
        if not share.responses:
            del self._users[response.user]

    def _count(self, share: _UserShare, change: int) -> None:
        share.bytes += change
        self.total += change

    @staticmethod
    def _added(share: _UserShare, response: UnreadResponse) -> int:
        if response.shared is None:
            return response.own
        holders = share.shared.get(id(response.shared), 0)
        share.shared[id(response.shared)] = holders + 1
        return response.own + (0 if holders else len(response.shared))

    @staticmethod
    def _removed(share: _UserShare, response: UnreadResponse) -> int:
        if response.shared is None:
            return response.own
        holders = share.shared.pop(id(response.shared)) - 1
        if holders:
            share.shared[id(response.shared)] = holders
        return response.own + (0 if holders else len(response.shared))
