"""``sandpool run``: claim a sandbox, run a command in it, release it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from sandpool.api.labels import RUN
from sandpool.cli.execution import command_options, execute, parse_environment
from sandpool.cli.option_groups import GroupedCommand, option
from sandpool.cli.pool_choice import choose_pool, pool_options
from sandpool.cli.sessions import Target, target_options

if TYPE_CHECKING:
    from sandpool.service.claims import Claim
    from sandpool.service.sandboxes import Sandbox
    from sandpool.service.service import Service

_SLOW = 1.0  # seconds after which waiting is worth a message


@click.command(cls=GroupedCommand, context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True)
@pool_options
@command_options
@option(
    "--volume",
    "-v",
    "volumes",
    multiple=True,
    metavar="LOCAL:REMOTE",
    help="Copy a file or directory into the sandbox before the command runs. May be repeated.",
)
@option("--keep", is_flag=True, help="Keep the sandbox afterwards, and print the name of its claim.")
@option("--name", help="Name of the claim. [default: a random one]")
@target_options
def run(
    command: tuple[str, ...],
    pool: str | None,
    template: str | None,
    env: tuple[str, ...],
    volumes: tuple[str, ...],
    keep: bool,
    name: str | None,
    wait: float,
    target: Target,
    **options: Any,
) -> None:
    """Run a command in a sandbox of its own.

    Standard input that is piped in reaches the command, and the exit code is the command's. The sandbox is removed
    afterwards, also after Ctrl-C. If nothing runs on this machine yet, the local home is started in the background.

    \b
    sandpool run -- python3 -c 'print(6*7)'
    sandpool run -it bash
    sandpool run -v data.csv:data.csv -- python3 -c 'print(open("data.csv").read())'
    """
    environment = parse_environment(env)
    copies = [_volume(text) for text in volumes]

    async def work(service: Service) -> int:
        chosen = await choose_pool(service, pool, template, wait)
        async with _sandbox(service, chosen, name, keep, wait) as sandbox:
            for source, destination in copies:
                await service.files.upload(sandbox, source, destination)
            return await execute(service, sandbox, command, env=environment, **options)

    code = target.run(work, start_home=True)
    if code:
        raise click.exceptions.Exit(code)


@asynccontextmanager
async def _sandbox(service: Service, pool: str, name: str | None, keep: bool, wait: float) -> AsyncIterator[Sandbox]:
    """A claimed sandbox. Its claim is deleted at the end of the block, also if the block is cancelled."""
    claims = service.claims
    waiting = asyncio.get_running_loop().call_later(_SLOW, partial(_say, f"waiting for a sandbox of pool {pool} ..."))
    try:
        mark = {} if keep else {RUN: "true"}
        claim: Claim = await claims.create(pool, name=name, prefix="run", own_labels=mark, timeout=wait)
    finally:
        waiting.cancel()
    try:
        yield await service.sandboxes.get(claim.sandbox)
    finally:
        if keep:
            _say(f"kept claim {claim.name}: sandpool exec {claim.name} -- COMMAND, sandpool release {claim.name}")
        else:
            await asyncio.shield(asyncio.ensure_future(_release(service, claim)))


async def _release(service: Service, claim: Claim) -> None:
    from sandpool.service.errors import UnknownName

    with suppress(UnknownName):  # the command, or another user, was quicker
        await service.claims.release(claim.name, uid=claim.uid)


def _volume(text: str) -> tuple[str, str]:
    source, colon, destination = text.partition(":")
    if not colon or not source or not destination:
        raise click.UsageError(f"-v {text}: use LOCAL:REMOTE, for example -v data.csv:/workspace/data.csv")
    if not os.path.exists(source):
        raise click.UsageError(f"-v {text}: there is no file or directory {source}")
    return source, destination


def _say(line: str) -> None:
    click.echo(line, err=True)
