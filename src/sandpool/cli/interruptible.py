"""Lets a command clean up when SIGINT or SIGTERM interrupts it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

T = TypeVar("T")


def interruptible(work: Callable[[T], Awaitable[None]]) -> Callable[[T], Awaitable[None]]:
    """Wrap ``work`` so that a signal cancels it: its clean-up runs, then ``click.Abort`` is raised.

    A second signal cancels the clean-up too.
    """

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
