"""``sandpool suspend`` and ``resume``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sandpool.cli.execution import parse_duration
from sandpool.cli.option_groups import GroupedCommand, option
from sandpool.cli.progress import Progress, line_if_slow, steps
from sandpool.cli.sessions import Target, target_options

if TYPE_CHECKING:
    from sandpool.service.sandboxes import Sandbox
    from sandpool.service.service import Service

F = TypeVar("F", bound=Callable[..., Any])


def _wait_options(command: F) -> F:
    for add in (
        option(
            "--timeout",
            default="60s",
            show_default=True,
            callback=parse_duration,
            metavar="DURATION",
            help="How long to wait until it is done.",
        ),
        option("--no-wait", is_flag=True, help="Return at once."),
    ):
        command = add(command)
    return command


@click.command(cls=GroupedCommand)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@_wait_options
@target_options
def suspend(names: tuple[str, ...], no_wait: bool, timeout: float, target: Target) -> None:
    """Suspend sandboxes: their processes end, their volumes and names stay.

    Files outside of volumes are lost: the writable root of a sandbox ends with its pod.
    """
    _change(names, target, suspended=True, wait=None if no_wait else timeout)


@click.command(cls=GroupedCommand)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@_wait_options
@target_options
def resume(names: tuple[str, ...], no_wait: bool, timeout: float, target: Target) -> None:
    """Resume suspended sandboxes, with new processes and the same volumes."""
    _change(names, target, suspended=False, wait=None if no_wait else timeout)


def _change(names: tuple[str, ...], target: Target, *, suspended: bool, wait: float | None) -> None:
    done = "suspended" if suspended else "resumed"

    async def one(service: Service, name: str, progress: Progress, finished: list[str]) -> None:
        sandboxes = service.sandboxes
        change: Callable[[str], Awaitable[Sandbox]] = sandboxes.suspend if suspended else sandboxes.resume
        before = await sandboxes.find(name)
        # One that fell asleep becomes suspended by its user: requests do not resume it any more.
        is_changed = before.suspended is not suspended or before.asleep
        sandbox = await change(f"sandbox/{before.name}")
        if wait is not None:
            with line_if_slow(progress.show, f"waiting until {name} is {done} ..."):
                await sandboxes.wait(sandbox.name, suspended=suspended, timeout=wait)
        line = f"{done} {name}" if is_changed else f"{name} is {'suspended' if suspended else 'running'} already"
        progress.show(line, click.echo)
        finished.append(name)
        _show(progress, len(finished), len(names), done)

    async def work(service: Service) -> None:
        with steps(in_terminal_only=True) as progress:
            finished: list[str] = []
            _show(progress, 0, len(names), done)
            each = (one(service, name, progress, finished) for name in names)
            outcomes = await asyncio.gather(*each, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    target.run(work)


def _show(progress: Progress, finished: int, total: int, done: str) -> None:
    progress.bar(finished, total, f"{finished} of {total} {'sandbox' if total == 1 else 'sandboxes'} {done}")
