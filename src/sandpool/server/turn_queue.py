"""A queue in which users take turns.

The requests of one user wait in arrival order. ``admit_next`` admits the first request of the user whose last turn is
longest ago, so a user with a thousand waiting requests delays one of another user by one request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

User = TypeVar("User", bound=Hashable)


def _nothing() -> None: ...


class TurnQueue(Generic[User]):
    """Every queue in ``_waiting`` has an element; the users are in the order of their next turns."""

    def __init__(self) -> None:
        self._waiting: dict[User, deque[tuple[asyncio.Future[None], Callable[[], None]]]] = {}

    def __contains__(self, user: User) -> bool:
        return user in self._waiting

    def count(self, user: User) -> int:
        """The waiting requests of a user."""
        return len(self._waiting.get(user, ()))

    async def wait(
        self, user: User, take: Callable[[], None] = _nothing, give_back: Callable[[], None] = _nothing
    ) -> None:
        """Wait to be admitted. ``take`` is called at the admission, and ``give_back`` if the caller is cancelled
        between its admission and its next step."""
        admitted = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(user, deque()).append((admitted, take))
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.done() and not admitted.cancelled():
                give_back()
            raise

    def admit(self, user: User) -> bool:
        """Admit the first request of a user and move the user behind the others; False if none waits."""
        queue = self._waiting.pop(user, None)
        while queue:
            admitted, take = queue.popleft()
            if not admitted.done():
                if queue:
                    self._waiting[user] = queue
                take()
                admitted.set_result(None)
                return True
        return False

    def admit_next(self) -> bool:
        """Admit the first request of the next user; False if none waits."""
        while self._waiting:
            if self.admit(next(iter(self._waiting))):
                return True
        return False
