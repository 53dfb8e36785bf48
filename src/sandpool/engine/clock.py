"""The clock: the only module of the project that reads the system time or sleeps. It is passed in everywhere.

Wall time is for timestamps that users and other programs read. Monotonic time is for measuring and waiting.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

from sandpool.api.times import micro_timestamp, timestamp

__all__ = ["Clock", "SystemClock", "micro_timestamp", "timestamp", "within"]

T = TypeVar("T")


class Clock(Protocol):
    def now(self) -> datetime:
        """Wall-clock time, always in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds since an arbitrary origin; never decreases."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(asyncio.sleep)


async def within(clock: Clock, seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of ``work``, or cancel it after ``seconds``, wait for its end and raise ``TimeoutError``.

    ``asyncio.timeout`` would use the event loop's own clock instead of the one passed in.
    """
    task, alarm = asyncio.create_task(work), asyncio.create_task(clock.sleep(seconds))
    try:
        await asyncio.wait((task, alarm), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise TimeoutError(f"not done within {seconds:g} s")
        return task.result()
    finally:
        task.cancel()
        alarm.cancel()
        await asyncio.gather(task, alarm, return_exceptions=True)
