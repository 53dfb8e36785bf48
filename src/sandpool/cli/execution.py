"""Options and behaviour that ``run``, ``exec`` and ``shell`` share."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from sandpool.api.times import parse_seconds
from sandpool.cli.console import OWN_CONSOLE, Console
from sandpool.cli.option_groups import option

if TYPE_CHECKING:
    from sandpool.service.sandboxes import Sandbox
    from sandpool.service.service import Service

F = TypeVar("F", bound=Callable[..., Any])

#: The exit code of timeout(1).
TIMED_OUT = 124
KILLED = 137  # 128 + SIGKILL
# Programs that read commands from standard input if they are given none.
_INTERPRETERS: Final = frozenset(
    {"bash", "dash", "ash", "sh", "zsh", "fish", "python", "python3", "ipython", "node", "irb", "R", "psql", "sqlite3"}
)


#: A hundred years: what is longer is a slip of the keyboard, and no date.
_LONGEST: Final = 100 * 365 * 24 * 3600.0


def parse_duration(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Read ``30``, ``30s`` or ``1m30s`` as seconds."""
    if value is None:
        return None
    seconds = parse_seconds(f"{value}s" if value.replace(".", "", 1).isdigit() else value)
    if seconds is None or seconds <= 0:
        raise click.BadParameter(f"{value!r} is not a duration: use a form like 30s, 5m or 1h30m")
    if seconds > _LONGEST:
        raise click.BadParameter(f"{value!r} is longer than 100 years")
    return seconds


def parse_sleep_time(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Check the time after which a sandbox falls asleep; annotations have it as the user wrote it."""
    from sandpool.api.sleep import NEVER, is_sleep_time

    if value is not None and not is_sleep_time(value):
        raise click.BadParameter(f"{value!r} is not a duration: use a form like 30s, 5m or 1h30m, or {NEVER}")
    return value


def parse_environment(assignments: Sequence[str], environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Read ``NAME=VALUE``, and ``NAME`` for the value that the variable has in ``environ``."""
    variables = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not name:
            raise click.UsageError(f"-e {text}: use NAME=VALUE, or NAME to pass on your own variable")
        if not equals:
            if name not in environ:
                raise click.UsageError(f"-e {name}: there is no variable {name} here; give a value: -e {name}=VALUE")
            value = environ[name]
        variables[name] = value
    return variables


def command_options(command: F) -> F:
    """Add the options of a command in a sandbox: ``cwd``, ``timeout``, ``env``, ``tty`` and ``interactive``."""
    for add in (
        option("--workdir", "-w", "cwd", metavar="PATH", help="Directory to run in. [default: that of the image]"),
        option(
            "--timeout",
            callback=parse_duration,
            metavar="DURATION",
            help="Kill the command after this time, such as 30s or 5m; the exit code is then 124.",
        ),
        option("--env", "-e", multiple=True, metavar="NAME=VALUE", help="Set a variable; NAME alone passes yours on."),
        option("--tty", "-t", is_flag=True, help="Give the command a terminal."),
        option("--interactive", "-i", is_flag=True, help="Pass on standard input. [default: if it is a pipe or file]"),
    ):
        command = add(command)
    return command


async def execute(
    service: Service,
    sandbox: Sandbox,
    words: Sequence[str],
    *,
    interactive: bool,
    tty: bool,
    env: dict[str, str],
    timeout: float | None,
    cwd: str | None,
    console: Console = OWN_CONSOLE,
) -> int:
    """Run a command with the standard streams of a console, by default of this process, and return its exit code."""
    from sandpool.service.commands import Command

    if tty and interactive and not console.is_terminal:
        raise click.UsageError("-t needs a terminal; leave it out to pipe")
    stdin = interactive or console.has_piped_input
    command = Command(tuple(words), env=env, cwd=cwd, tty=tty, stdin=stdin)
    async with service.commands.start(sandbox, command) as running:
        try:
            async with asyncio.timeout(timeout):
                code = await console.converse(running, stdin=stdin, tty=tty)
        except TimeoutError:
            console.show(f"killed after {timeout:g} s")
            return TIMED_OUT
    if not stdin and not tty and len(words) == 1 and os.path.basename(words[0]) in _INTERPRETERS:
        console.show(f"{words[0]} had no input and ended. To type commands into it use: -it {words[0]}")
    if code == KILLED:
        why = f"`sandpool why {sandbox.name}` tells whether the sandbox ran out of memory and lost its files"
        console.show(f"the command was killed: {why}")
    return code
