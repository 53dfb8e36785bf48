"""A command that cleans up after itself also when it is interrupted: by Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

T = TypeVar("T")


def interruptible(work: Callable[[T], Awaitable[None]]) -> Callable[[T], Awaitable[None]]:
    """``work`` that ends by ``click.Abort`` when somebody interrupts it, after everything it does on leaving. A second
    interruption cuts that short."""

    async def attended(argument: T) -> None:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM)
        for number in signals:
            loop.add_signal_handler(number, task.cancel)
        try:
            await work(argument)
        except asyncio.CancelledError:
            raise click.Abort from None
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    return attended
