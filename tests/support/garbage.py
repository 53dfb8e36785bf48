"""Whether things are freed when nobody uses them any more, and not only when the garbage collector comes."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable

from sandpool.testing.waiting import until

_TIMES = 5


async def freed_at_once(use: Callable[[], Awaitable[object]], *kinds: type) -> None:
    """Use things of some kinds a few times, and wait until none of them is left. Fails if it takes the collector,
    which may not come for a long time, and of what it would free knows the smaller part."""

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
