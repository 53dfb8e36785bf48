"""One clock, passed in: nothing else in the project asks the operating system what time it is or goes to sleep.

Wall time is for timestamps that people and other programs read; monotonic time is for measuring and waiting.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol

from sandpool.api.times import micro_timestamp, timestamp

__all__ = ["Clock", "SystemClock", "micro_timestamp", "timestamp"]


class Clock(Protocol):
    def now(self) -> datetime:
        """Wall-clock time, always in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary origin; never goes back."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
