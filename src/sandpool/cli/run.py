"""``sandpool run``: claim a sandbox, run a command in it, release it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import click

from sandpool.api.labels import RUN
from sandpool.cli.console import OWN_CONSOLE, Console
from sandpool.cli.execution import command_options, execute, parse_environment
from sandpool.cli.option_groups import GroupedCommand, option
from sandpool.cli.pool_choice import choose_pool, pool_options, waiting_for_sandbox
from sandpool.cli.sessions import Target, target_options

if TYPE_CHECKING:
    from sandpool.service.claims import Claim
    from sandpool.service.sandboxes import Sandbox
    from sandpool.service.service import Service


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
def run(target: Target, **options: Any) -> None:
    """Run a command in a sandbox of its own.

    Standard input that is piped in reaches the command, and the exit code is the command's. The sandbox is removed
    afterwards, also after Ctrl-C. If nothing runs on this machine yet, the local home is started in the background.

    \b
    sandpool run -- python3 -c 'print(6*7)'
    sandpool run -it bash
    sandpool run -v data.csv:data.csv -- python3 -c 'print(open("data.csv").read())'
    """
    request = RunRequest.of(**options)
    code = target.run(partial(request.perform, console=OWN_CONSOLE), start_home=True)
    if code:
        raise click.exceptions.Exit(code)


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The options of ``sandpool run``, checked. A home that serves the command makes one from the same options."""

    command: tuple[str, ...]
    pool: str | None
    template: str | None
    environment: dict[str, str]
    copies: tuple[tuple[str, str], ...]  # local and remote path
    keep: bool
    name: str | None
    wait: float
    execution: dict[str, Any]  # further options of ``execute``

    @classmethod
    def of(
        cls,
        *,
        command: tuple[str, ...],
        pool: str | None,
        template: str | None,
        env: tuple[str, ...],
        volumes: tuple[str, ...],
        keep: bool,
        name: str | None,
        wait: float,
        environ: Mapping[str, str] = os.environ,
        **execution: Any,
    ) -> Self:
        """Read the parameters of the command. Raises ``click.UsageError``."""
        environment = parse_environment(env, environ)
        copies = tuple(_volume(text) for text in volumes)
        return cls(command, pool, template, environment, copies, keep, name, wait, execution)

    async def perform(self, service: Service, console: Console) -> int:
        """Claim a sandbox, run the command with the streams of ``console``, release the claim; return the exit code.

        The claim is released when this is cancelled, too."""
        pool = await choose_pool(service, self.pool, self.template, self.wait, console)
        async with self._sandbox(service, pool, console) as sandbox:
            await self._copy(service, sandbox)
            environment = self.environment
            return await execute(service, sandbox, self.command, env=environment, console=console, **self.execution)

    async def _copy(self, service: Service, sandbox: Sandbox) -> None:
        if not self.copies:
            return
        from sandpool.cli.cp import CopyProgress, local_size

        progress = CopyProgress(sum(local_size(source) for source, _ in self.copies))
        try:
            for source, destination in self.copies:
                await service.files.upload(sandbox, source, destination, progress=progress.add)
        finally:
            progress.end()

    @asynccontextmanager
    async def _sandbox(self, service: Service, pool: str, console: Console) -> AsyncIterator[Sandbox]:
        """A claimed sandbox. Its claim is deleted at the end of the block, also if the block is cancelled."""
        claims = service.claims
        mark = {} if self.keep else {RUN: "true"}
        with waiting_for_sandbox(pool, console):
            claim = await claims.create(pool, name=self.name, prefix="run", own_labels=mark, timeout=self.wait)
        try:
            yield await service.sandboxes.get(claim.sandbox)
        finally:
            if self.keep:
                name = claim.name
                console.show(f"kept claim {name}: sandpool exec {name} -- COMMAND, sandpool release {name}")
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
