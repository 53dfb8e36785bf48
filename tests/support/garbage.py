"""Checks that objects are freed when they are unused, without the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable

from sandpool.testing.waiting import until

_TIMES = 5


async def freed_at_once(use: Callable[[], Awaitable[object]], *kinds: type) -> None:
    """Use objects of some types a few times, and wait until all are freed. Fails if only the garbage collector would
    free them, because it may run late and does not see all memory."""

    def count() -> int:
        return sum(isinstance(each, kinds) for each in gc.get_objects())

    async def are_gone() -> bool:
        return count() <= before

    await use()
    gc.collect()
    gc.disable()
    try:
        before = count()
        for _ in range(_TIMES):
            await use()
        await until(are_gone)
    finally:
        gc.enable()
