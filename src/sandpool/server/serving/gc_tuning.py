"""Tunes Python's cyclic garbage collector for a server process.

A full collection walks every tracked container, and full collections are frequent while many objects are created and
few die young. A server keeps its schemas and tables forever and creates a few hundred short-lived dicts per request,
nearly all of which reference counting frees at once. So objects that exist at start-up are frozen, and the thresholds
are raised.

Collections would still happen under load, because the collector counts allocations: a walk over the objects of a burst
takes as long as a dozen of its claims. So the collector runs when the process is idle, before the threshold is
reached. Survivors move to an older generation and are not walked again.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

from sandpool.engine.clock import Clock

_THRESHOLDS: Final = (50_000, 20, 10_000)

# Seconds between two checks, and the share of them that the event loop may have been busy.
_INTERVAL: Final = 1.0
_IDLE: Final = 0.1
# The number of new objects that makes a collection worthwhile.
_WORTHWHILE: Final = 5_000

# Of the main thread, which runs the event loop: nanoseconds running, and nanoseconds waiting for a CPU.
_SCHEDULED: Final = Path("/proc/self/schedstat")


def settle() -> None:
    """Freeze existing objects and raise the thresholds. Call once, when the process is about to serve."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)


def busy_seconds() -> float:
    """Seconds that the event loop was running or waiting for a CPU."""
    try:
        running, waiting = _SCHEDULED.read_text().split()[:2]
    except (OSError, ValueError):
        return time.process_time()  # a kernel without schedstat
    return (int(running) + int(waiting)) / 1e9


@contextlib.asynccontextmanager
async def tidied(clock: Clock, busy: Callable[[], float] = busy_seconds) -> AsyncIterator[None]:
    """Collect garbage while the process is idle, for the duration of the block."""
    tidying = asyncio.create_task(_tidy(clock, busy), name="garbage")
    try:
        yield
    finally:
        tidying.cancel()
        await asyncio.gather(tidying, return_exceptions=True)


async def _tidy(clock: Clock, busy: Callable[[], float]) -> None:
    while True:
        before = busy()
        await clock.sleep(_INTERVAL)
        if gc.get_count()[0] >= _WORTHWHILE and busy() - before <= _IDLE * _INTERVAL:
            gc.collect(1)
