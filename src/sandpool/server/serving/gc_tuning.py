"""How a process that is all server should collect its garbage.

Python's collector walks every container it knows of when a full collection comes, and full collections come often while
many objects are made and few die young. A server keeps its schemas and tables for good and makes a few hundred
short-lived dicts per request, nearly all of which are freed by reference counting at once. So what is there when it
starts is taken out of the collector's sight, and it is called rarely.

Rarely is still when most is going on: what counts is how many objects were made, and a walk over those of a burst takes
as long as a dozen of its claims. So the collector is called when there is nothing else to do, before it would come by
itself. What is there then is there to stay, and is not looked at again.
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

# Seconds between two looks, and the share of them in which there may have been something to do.
_LOOK: Final = 1.0
_IDLE: Final = 0.1
# How many objects are worth a call.
_WORTH: Final = 5_000

# Of the first thread, which runs the event loop: nanoseconds on a processor, and ready to run without one.
_SCHEDULED: Final = Path("/proc/self/schedstat")


def settle() -> None:
    """To be called once, by whoever owns the process, when it is about to serve."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)


def busy_seconds() -> float:
    """For how long the event loop has had something to do, whether it had a processor or not."""
    try:
        running, waiting = _SCHEDULED.read_text().split()[:2]
    except (OSError, ValueError):
        return time.process_time()  # a kernel that does not count
    return (int(running) + int(waiting)) / 1e9


@contextlib.asynccontextmanager
async def tidied(clock: Clock, busy: Callable[[], float] = busy_seconds) -> AsyncIterator[None]:
    """Collect garbage whenever there is nothing else to do, for the length of the block."""
    tidying = asyncio.create_task(_tidy(clock, busy), name="garbage")
    try:
        yield
    finally:
        tidying.cancel()
        await asyncio.gather(tidying, return_exceptions=True)


async def _tidy(clock: Clock, busy: Callable[[], float]) -> None:
    while True:
        before = busy()
        await clock.sleep(_LOOK)
        if gc.get_count()[0] >= _WORTH and busy() - before <= _IDLE * _LOOK:
            gc.collect(1)
