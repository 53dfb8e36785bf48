"""``sandpool run``: claim a sandbox, run a command in it, release it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from sandpool.cli.execution import command_options, execute, parse_duration, parse_environment
from sandpool.cli.option_groups import GroupedCommand, option
from sandpool.cli.sessions import Target, target_options

if TYPE_CHECKING:
    from sandpool.service.claims import Claim
    from sandpool.service.sandboxes import Sandbox
    from sandpool.service.service import Service

#: The pool that is used if several exist and none is named.
DEFAULT_POOL = "python"
_SLOW = 1.0  # seconds after which waiting is worth a message


@click.command(cls=GroupedCommand, context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True)
@option("--pool", "-p", help="Take a sandbox from this pool. [default: python, or the only pool]")
@option("--template", help="Take a sandbox of this template; makes a pool for it if there is none.")
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
@option(
    "--wait",
    default="120s",
    show_default=True,
    callback=parse_duration,
    metavar="DURATION",
    help="How long to wait for a sandbox.",
)
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
        claim: Claim = await claims.create(pool, name=name, prefix="run", timeout=wait)
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


async def choose_pool(service: Service, pool: str | None, template: str | None, wait: float) -> str:
    """The named pool, a pool of the template, the pool ``python``, or the only pool. Makes one if there is none."""
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
        _say(f"made pool {made.name} with 1 warm sandbox; remove it with: sandpool pool rm {made.name}")
        await service.pools.wait_ready(made.name, 1, wait)
        return made.name
    names = [each.name for each in pools]
    if not names:
        return await _make_default_pool(service, wait)
    if len(names) == 1:
        return names[0]
    if DEFAULT_POOL in names:
        return DEFAULT_POOL
    raise click.UsageError(f"there are several pools; choose one with --pool: {', '.join(sorted(names))}")


async def _make_default_pool(service: Service, wait: float) -> str:
    from importlib.resources import files

    import yaml

    text = (files("sandpool.cli") / "manifests" / "quickstart.yaml").read_text()
    documents = [each for each in yaml.safe_load_all(text) if each["kind"] != "SandboxClaim"]
    await service.pools.ensure(documents)
    _say(f"made template and pool {DEFAULT_POOL}; waiting for its first warm sandbox ...")
    await service.pools.wait_ready(DEFAULT_POOL, 1, wait)
    return DEFAULT_POOL


def _volume(text: str) -> tuple[str, str]:
    source, colon, destination = text.partition(":")
    if not colon or not source or not destination:
        raise click.UsageError(f"-v {text}: use LOCAL:REMOTE, for example -v data.csv:/workspace/data.csv")
    if not os.path.exists(source):
        raise click.UsageError(f"-v {text}: there is no file or directory {source}")
    return source, destination


def _say(line: str) -> None:
    click.echo(line, err=True)
