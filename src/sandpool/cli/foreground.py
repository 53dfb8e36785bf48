"""Runs a command until SIGINT or SIGTERM. The first signal stops it gracefully, the second at once."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop


def run(work: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    """Run ``work`` with an event; ``work`` ends when the event is set."""
    _raise_open_file_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_attended(work))


def _raise_open_file_limit() -> None:
    """Raise the soft limit of open files to the hard limit: three hundred sandboxes need more than the usual 1,024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _attended(work: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    stopping = asyncio.Event()

    def stop() -> None:
        if stopping.is_set():
            os._exit(130)  # second signal: do not wait for a graceful stop
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    await work(stopping)


async def until(stopping: asyncio.Event, *others: Coroutine[Any, Any, object]) -> bool:
    """Wait until ``stopping`` is set (True) or another coroutine ends (False); re-raise the failure of the latter."""
    tasks = [asyncio.create_task(each) for each in others]
    stopped = asyncio.create_task(stopping.wait())
    try:
        done, _ = await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        return stopping.is_set()
    finally:
        for task in (stopped, *tasks):
            task.cancel()
        await asyncio.gather(stopped, *tasks, return_exceptions=True)
