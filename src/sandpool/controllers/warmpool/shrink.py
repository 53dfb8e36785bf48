"""Which members to give up when there are too many."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Final

from sandpool.api.views import SandboxView

_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


def nobody_is_outdated(member: SandboxView) -> bool:
    return False


def surplus(
    members: Iterable[SandboxView],
    excess: int,
    is_outdated: Callable[[SandboxView], bool] = nobody_is_outdated,
) -> list[SandboxView]:
    """The ``excess`` members that would be missed least: those that are not ready before those that are, outdated ones
    before current ones, and the newest first, which had the least time to get warm."""
    if excess <= 0:
        return []
    newest_first = sorted(members, key=lambda member: member.creation_timestamp or _LONG_AGO, reverse=True)
    return sorted(newest_first, key=lambda member: (member.ready, not is_outdated(member)))[:excess]
