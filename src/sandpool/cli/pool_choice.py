"""The pool that ``run`` and ``claim`` take a sandbox from: their options, and what happens without them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sandpool.api.printable import one_line
from sandpool.cli.console import OWN_CONSOLE, Console
from sandpool.cli.execution import parse_duration
from sandpool.cli.option_groups import option

if TYPE_CHECKING:
    from sandpool.service.service import Service

F = TypeVar("F", bound=Callable[..., Any])

#: The pool that is used if several exist and none is named.
DEFAULT_POOL = "python"


def pool_options(command: F) -> F:
    """Options that choose the pool; the command receives ``pool``, ``template`` and ``wait``, in seconds."""
    for add in (
        option(
            "--wait",
            default="120s",
            show_default=True,
            callback=parse_duration,
            metavar="DURATION",
            help="How long to wait for a sandbox.",
        ),
        option("--template", help="Take a sandbox of this template; makes a pool for it if there is none."),
        option("--pool", "-p", help="Take a sandbox from this pool. [default: python, or the only pool]"),
    ):
        command = add(command)
    return command


async def choose_pool(
    service: Service, pool: str | None, template: str | None, wait: float, console: Console = OWN_CONSOLE
) -> str:
    """The named pool, a pool of the template, the pool ``python``, or the only pool. Makes one if there is none, and
    says so."""
    if pool is not None and template is not None:
        raise click.UsageError("use --pool or --template, not both: a pool has one template")
    if pool is not None:
        return pool
    pools = await service.pools.list()
    if template is not None:
        fitting = sorted((each for each in pools if each.template == template), key=lambda each: -each.ready)
        if fitting:
            return fitting[0].name
        made = await service.pools.create(template, template, 1)
        console.show(f"made pool {made.name} with 1 warm sandbox; remove it with: sandpool pool rm {made.name}")
        await _first_sandbox(service, made.name, wait, console)
        return made.name
    names = [each.name for each in pools]
    if not names:
        return await _make_default_pool(service, wait, console)
    if len(names) == 1:
        return names[0]
    if DEFAULT_POOL in names:
        return DEFAULT_POOL
    raise click.UsageError(f"there are several pools; choose one with --pool: {', '.join(sorted(names))}")


def waiting_for_sandbox(pool: str, console: Console = OWN_CONSOLE) -> AbstractContextManager[None]:
    """Tell the user what is waited for, if the block takes a while."""
    return console.waiting(f"waiting for a sandbox of pool {pool}")


async def ensure_default_pool(service: Service) -> None:
    """Make the template and the pool of Python sandboxes, unless they are there."""
    from importlib.resources import files

    import yaml

    text = (files("sandpool.cli") / "manifests" / "quickstart.yaml").read_text()
    documents = [each for each in yaml.safe_load_all(text) if each["kind"] != "SandboxClaim"]
    await service.pools.ensure(documents)


async def _make_default_pool(service: Service, wait: float, console: Console) -> str:
    await ensure_default_pool(service)
    console.show(f"made template and pool {DEFAULT_POOL}; waiting for its first warm sandbox ...")
    await _first_sandbox(service, DEFAULT_POOL, wait, console)
    return DEFAULT_POOL


async def _first_sandbox(service: Service, pool: str, wait: float, console: Console) -> None:
    with console.waiting(f"waiting for the first warm sandbox of pool {pool}", in_terminal_only=True):
        await service.pools.wait_ready(pool, 1, wait, failing=lambda why: console.show(not_starting(pool, why)))


def not_starting(pool: str, why: str) -> str:
    """A line for a user whose pool has a sandbox that does not start."""
    return f"pool {pool} is not ready yet: {one_line(why)}"
