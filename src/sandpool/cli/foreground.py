"""A command that runs until it is told to stop: by Ctrl-C or SIGTERM once in good order, twice at once."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop


def run(work: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    """Run ``work``, which ends when the event it is given is set."""
    _open_as_many_files_as_may_be()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_attended(work))


def _open_as_many_files_as_may_be() -> None:
    """What is given without asking, 1,024 in most places, is for programs that cannot count further. Three hundred
    sandboxes and their clients need more."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _attended(work: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    stopping = asyncio.Event()

    def stop() -> None:
        if stopping.is_set():
            os._exit(130)  # asked twice: somebody is in a hurry
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    await work(stopping)


async def until(stopping: asyncio.Event, *others: Coroutine[Any, Any, object]) -> bool:
    """Wait until told to stop, which is True, or until one of the others ends; raises what it failed with."""
    tasks = [asyncio.create_task(each) for each in others]
    told = asyncio.create_task(stopping.wait())
    try:
        done, _ = await asyncio.wait([told, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        return stopping.is_set()
    finally:
        for task in (told, *tasks):
            task.cancel()
        await asyncio.gather(told, *tasks, return_exceptions=True)
