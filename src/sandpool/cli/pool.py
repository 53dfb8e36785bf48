"""``sandpool pool``: warm pools."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from typing import TYPE_CHECKING

import click

from sandpool.api.printable import one_line
from sandpool.cli.execution import parse_duration
from sandpool.cli.option_groups import GroupedCommand, option
from sandpool.cli.output import Column, age, output_option, show
from sandpool.cli.pool_choice import not_starting
from sandpool.cli.progress import Progress, steps
from sandpool.cli.sessions import Target, target_options

if TYPE_CHECKING:
    from sandpool.service.pools import Pool
    from sandpool.service.service import Service

#: What a field ``replicas`` holds.
_SIZE = click.IntRange(0, 2**31 - 1)
_STRATEGIES = ("OnReplenish", "RollingUpdate", "Recreate")


@click.group()
def pool() -> None:
    """Create, scale and list warm pools."""


@pool.command(cls=GroupedCommand)
@click.argument("name")
@option("--template", help="Template of its sandboxes. [default: the template with the name of the pool]")
@option("--size", "replicas", type=_SIZE, default=2, show_default=True, help="Number of warm sandboxes.")
@option(
    "--strategy",
    type=click.Choice(_STRATEGIES),
    help="How idle sandboxes follow a change of the template. [default: OnReplenish]",
)
@option("--wait", callback=parse_duration, metavar="DURATION", help="Wait so long until all of them are ready.")
@target_options
def create(
    name: str, template: str | None, replicas: int, strategy: str | None, wait: float | None, target: Target
) -> None:
    """Create a pool of warm sandboxes.

    \b
    sandpool pool create python --size 10 --wait 1m
    """

    async def work(service: Service) -> None:
        made = await service.pools.create(name, template or name, replicas, strategy)
        click.echo(f"created pool {made.name} with {replicas} {_sandboxes(replicas)} of template {made.template}")
        await _filled(service, name, replicas, wait)

    target.run(work, start_home=True)


@pool.command(cls=GroupedCommand)
@click.argument("name")
@click.argument("size", type=_SIZE)
@option("--wait", callback=parse_duration, metavar="DURATION", help="Wait so long until all of them are ready.")
@target_options
def scale(name: str, size: int, wait: float | None, target: Target) -> None:
    """Set the number of warm sandboxes of a pool."""

    async def work(service: Service) -> None:
        await service.pools.scale(name, size)
        click.echo(f"pool {name} has {size} {_sandboxes(size)} from now on")
        await _filled(service, name, size, wait)

    target.run(work)


@pool.command(cls=GroupedCommand)
@option("--all-namespaces", "-A", is_flag=True, help="Show all namespaces.")
@output_option
@target_options
def ls(all_namespaces: bool, output: str, target: Target) -> None:
    """List pools."""

    async def work(service: Service) -> tuple[Pool, ...]:
        return await service.pools.list(all_namespaces=all_namespaces)

    columns: list[Column[Pool]] = [
        Column("NAME", lambda pool: pool.name),
        Column("READY", lambda pool: f"{pool.ready}/{pool.desired}"),
        Column("TEMPLATE", lambda pool: pool.template),
        Column("AGE", lambda pool: age(pool.created)),
        Column("UPDATED", lambda pool: f"{pool.updated}/{pool.members}", wide=True),
        Column("STRATEGY", lambda pool: pool.strategy, wide=True),
        Column("STATE", lambda pool: one_line(pool.problem or pool.progress), wide=True),
    ]
    if all_namespaces:
        columns.insert(0, Column("NAMESPACE", lambda pool: pool.namespace))
    show(
        target.run(work),
        columns,
        output=output,
        name=lambda pool: f"pool/{pool.name}",
        document=lambda pool: pool.object,
        nothing="no pools; make one with: sandpool pool create NAME",
    )


@pool.command(cls=GroupedCommand)
@click.argument("name")
@option("--watch/--no-watch", default=None, help="Follow it to its end. [default: if the output is a terminal]")
@option(
    "--timeout",
    default="10m",
    show_default=True,
    callback=parse_duration,
    metavar="DURATION",
    help="Give up watching after this time.",
)
@option(
    "--restart",
    is_flag=True,
    help="Replace the idle sandboxes, a few at a time, also if the template has not changed, and follow it to its end.",
)
@target_options
def rollout(name: str, watch: bool | None, timeout: float, restart: bool, target: Target) -> None:
    """Show how far a pool has followed its template.

    Exits with 0 when all members have the current revision and the pool is full, and with 1 when it is not there yet.

    With --restart new sandboxes replace the idle ones. Use it after you built an image again under its name, or changed
    a Secret that sandboxes read at their start. Claimed sandboxes stay as they are.
    """
    if restart:
        _restart(name, timeout, target)
        return
    follow = sys.stdout.isatty() if watch is None else watch

    async def work(service: Service) -> bool:
        state = await service.pools.get(name)
        click.echo(_progress(state))
        if state.rolled_out or not follow:
            return state.rolled_out
        shown = _progress(state)
        with steps(in_terminal_only=True) as progress:
            _rolling(progress, state)
            async with asyncio.timeout(timeout):
                async for state in service.pools.states(name):
                    if (line := _progress(state)) != shown:
                        shown = line
                        progress.show(line, click.echo)
                        _rolling(progress, state)
                    if state.rolled_out:
                        return True
        return False

    try:
        done = target.run(work)
    except TimeoutError:
        raise _late(name, timeout) from None
    if not done:
        raise click.exceptions.Exit(1)


@pool.command(cls=GroupedCommand)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@target_options
def rm(names: tuple[str, ...], target: Target) -> None:
    """Remove pools and their idle sandboxes. Claimed sandboxes stay."""

    async def work(service: Service) -> None:
        for name in names:
            await service.pools.delete(name)
            click.echo(f"removed pool {name}")

    target.run(work)


def _restart(name: str, timeout: float, target: Target) -> None:
    async def work(service: Service) -> int:
        with steps() as progress:
            async with asyncio.timeout(timeout):
                return await service.pools.restart(name, partial(_replacing, progress))

    try:
        count = target.run(work)
    except TimeoutError:
        raise _late(name, timeout) from None
    click.echo(f"replaced {count} {_sandboxes(count)} of pool {name}")


def _replacing(progress: Progress, done: int, total: int) -> None:
    progress.bar(done, total, f"{done} of {total} {_sandboxes(total)} replaced")


def _rolling(progress: Progress, pool: Pool) -> None:
    done = min(pool.updated_ready, pool.desired)
    progress.bar(done, pool.desired, f"{done} of {pool.desired} ready with the current template")


def _late(name: str, timeout: float) -> click.ClickException:
    return click.ClickException(f"not done within {timeout:g} s; find out more with: sandpool why pool {name}")


def _progress(pool: Pool) -> str:
    # A pool that was made smaller has more members for a moment.
    line = f"{min(pool.updated_ready, pool.desired)} of {pool.desired} sandboxes are ready with the current template"
    if outdated := pool.members - pool.updated:
        line += f", {outdated} {'has' if outdated == 1 else 'have'} an older one"
        if pool.strategy == "OnReplenish":
            line += " and stay until they are claimed (strategy OnReplenish)"
    return f"{line}: {one_line(pool.problem)}" if pool.problem else line


async def _filled(service: Service, name: str, count: int, wait: float | None) -> None:
    if wait is not None:
        with steps() as progress:

            def failing(why: str) -> None:
                progress.show(not_starting(name, why))

            await service.pools.wait_ready(name, count, wait, partial(_filling, progress, count), failing)
        click.echo(f"{count} {_sandboxes(count)} ready")


def _filling(progress: Progress, count: int, ready: int) -> None:
    progress.bar(ready, count, f"{ready} of {count} {_sandboxes(count)} ready")


def _sandboxes(count: int) -> str:
    return "warm sandbox" if count == 1 else "warm sandboxes"
