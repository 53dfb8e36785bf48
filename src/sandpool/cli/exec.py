"""``sandpool exec`` and ``sandpool shell``: commands in a sandbox that is claimed already."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sandpool.cli.execution import command_options, execute, parse_environment
from sandpool.cli.option_groups import GroupedCommand, option
from sandpool.cli.sessions import Target, target_options

if TYPE_CHECKING:
    from sandpool.service.service import Service


class _NameFirst(GroupedCommand):
    """Accepts options before and after the name, as docker and kubectl do; those of the command stay with it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if len(args) < 2 or args[0].startswith("-") or not args[1].startswith("-"):
            return super().parse_args(ctx, args)
        rest = super().parse_args(ctx, args[1:])
        ctx.params["words"] = (args[0], *ctx.params["words"])
        return rest


@click.command(cls=_NameFirst, context_settings={"allow_interspersed_args": False})
@click.argument("words", nargs=-1, metavar="NAME [--] COMMAND...")
@command_options
@target_options
def exec(words: tuple[str, ...], env: tuple[str, ...], target: Target, **options: Any) -> None:  # noqa: A001 - the name of the command
    """Run a command in the sandbox of a claim.

    NAME is the name of a claim or of a sandbox. The exit code is the command's.

    \b
    sandpool exec my-claim -- ls -l
    echo 'print(6*7)' | sandpool exec my-claim -- python3
    """
    if not words:
        raise click.UsageError("name a claim and a command: sandpool exec NAME -- COMMAND")
    name, *command = words
    if command[:1] == ["--"]:
        del command[0]
    if not command:
        raise click.UsageError(f"give a command: sandpool exec {name} -- COMMAND")
    environment = parse_environment(env)

    async def work(service: Service) -> int:
        sandbox = await service.sandboxes.find(name)
        return await execute(service, sandbox, command, env=environment, **options)

    _end(target.run(work))


@click.command(cls=GroupedCommand)
@click.argument("name")
@option("--workdir", "-w", "cwd", metavar="PATH", help="Directory to start in. [default: that of the image]")
@option("--env", "-e", multiple=True, metavar="NAME=VALUE", help="Set a variable; NAME alone passes yours on.")
@target_options
def shell(name: str, env: tuple[str, ...], cwd: str | None, target: Target) -> None:
    """Open a shell in the sandbox of a claim.

    NAME is the name of a claim or of a sandbox. `exit` or Ctrl-D ends the shell; the sandbox stays.
    """
    from sandpool.cli.streams import is_terminal
    from sandpool.service.commands import SHELL

    tty = is_terminal()
    environment = {**({"TERM": _terminal_type()} if tty else {}), **parse_environment(env)}
    # Without a terminal the shell is a filter for a script that is piped in.
    words = SHELL if tty else ("sh",)

    async def work(service: Service) -> int:
        sandbox = await service.sandboxes.find(name)
        return await execute(service, sandbox, words, interactive=True, tty=tty, env=environment, timeout=None, cwd=cwd)

    _end(target.run(work))


def _terminal_type() -> str:
    import os

    return os.environ.get("TERM", "xterm")


def _end(code: int) -> None:
    if code:
        raise click.exceptions.Exit(code)
