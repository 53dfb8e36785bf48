"""``sandpool``: the command group. Each command is imported on first use.

A command is one line in ``GROUPS``: its name, the module that has a click command of that name, and its help line."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final, NoReturn, TextIO

import click

from sandpool import __version__
from sandpool.api.printable import printable
from sandpool.home.locations import TRACEBACK

# Group -> command -> its module and its line in ``sandpool --help``. The first group has the commands of every day.
GROUPS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "Everyday commands": {
        "run": ("sandpool.cli.run", "Run a command in a sandbox of its own."),
        "claim": ("sandpool.cli.claims", "Claim a sandbox that stays until it is released."),
        "exec": ("sandpool.cli.exec", "Run a command in the sandbox of a claim."),
        "shell": ("sandpool.cli.exec", "Open a shell in the sandbox of a claim."),
        "cp": ("sandpool.cli.cp", "Copy files into and out of sandboxes."),
        "open": ("sandpool.cli.open", "Print a local URL for a server in a sandbox."),
        "logs": ("sandpool.cli.logs", "Show the log of a sandbox, or of the home."),
        "ls": ("sandpool.cli.claims", "List claims and their sandboxes (also: ps)."),
        "release": ("sandpool.cli.claims", "Release claims: their sandboxes are deleted."),
        "suspend": ("sandpool.cli.lifecycle", "Suspend sandboxes: processes end, volumes stay."),
        "resume": ("sandpool.cli.lifecycle", "Resume suspended sandboxes."),
        "pool": ("sandpool.cli.pool", "Create, scale and list warm pools."),
        "template": ("sandpool.cli.template", "Create, show and list templates."),
        "up": ("sandpool.cli.up", "Start the local home: sandboxes on this machine."),
    },
    "The local home": {
        "status": ("sandpool.cli.status", "Show the home, its nodes, pools and claims on one screen."),
        "down": ("sandpool.cli.down", "Stop the home; sandboxes and their files are kept."),
        "backup": ("sandpool.cli.backup", "Copy all objects of a home or a cluster's volume into a file."),
        "restore": ("sandpool.cli.backup", "Put the objects of a backup into a data directory."),
        "context": ("sandpool.cli.context", "Show or choose the API that commands talk to."),
        "demo": ("sandpool.cli.demo", "Demonstrate everything on this machine, from start to clean-up."),
        "image": ("sandpool.cli.image", "Build, list, import and remove images of this machine."),
        "mcp": ("sandpool.cli.mcp", "Serve sandboxes to language models (Model Context Protocol)."),
    },
    "Insight": {
        "top": ("sandpool.cli.top", "Show pools, claims, CPU and memory, live."),
        "dashboard": ("sandpool.cli.dashboard", "Open the dashboard in a browser, or serve one for a cluster."),
        "why": ("sandpool.cli.why", "Explain why a claim, sandbox, pool, template or pod is in its state."),
        "trace": ("sandpool.cli.trace", "Show every API call about one claim or sandbox, from an audit log."),
        "bench": ("sandpool.cli.bench", "Measure latency and cost of claims under load."),
    },
    "Other clients": {
        "e2b": ("sandpool.cli.e2b", "Serve clients of E2B, and manage their API keys."),
    },
    "Kubernetes clusters": {
        "install": ("sandpool.cli.install", "Install into a Kubernetes cluster."),
        "uninstall": ("sandpool.cli.uninstall", "Remove an installation from a Kubernetes cluster."),
        "storage": ("sandpool.cli.storage", "Move sandboxes and claims of a cluster to another storage."),
        "token": ("sandpool.cli.token", "Issue a token for sandboxes behind the router."),
    },
    "This program": {
        "doctor": ("sandpool.cli.doctor", "Check this machine, and say what to install."),
        "version": ("sandpool.cli.version", "Show versions."),
        "completion": ("sandpool.cli.completion", "Print the completion script of a shell."),
    },
    "Single components": {
        "apiserver": ("sandpool.cli.apiserver", "Serve our kinds behind a kube-apiserver, with the controllers."),
        "controller": ("sandpool.cli.controller", "Run the controllers for a Kubernetes cluster."),
        "node": ("sandpool.cli.node", "Run this machine as a node of a Kubernetes cluster."),
        "router": ("sandpool.cli.router", "Route HTTP requests to the sandboxes of a Kubernetes cluster."),
        "server": ("sandpool.cli.server", "Run the embedded Kubernetes API alone."),
    },
}
# Commands whose import takes a second, and what they say before.
_SLOW: Final = {"up": "loading"}
#: Names of commands that other tools use for them.
ALIASES: Final = {"ps": "ls"}
#: Names of other tools for what these commands do. They are no commands; the message for them leads to ours.
_HABITS: Final = {
    "build": "image build",
    "copy": "cp",
    "create": "claim",
    "delete": "release",
    "describe": "why",
    "images": "image ls",
    "kill": "release",
    "list": "ls",
    "pause": "suspend",
    "port-forward": "open",
    "rm": "release",
    "start": "up",
    "stop": "down",
    "unpause": "resume",
}
COMMANDS: Final = {name: entry for group in GROUPS.values() for name, entry in group.items()}


class GroupedCommands(click.Group):
    """Imports a command on first use, and turns expected failures of all commands into one-line messages."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        name = ALIASES.get(name, name)
        if name not in COMMANDS:
            return None
        module, _ = COMMANDS[name]
        command: click.Command = getattr(import_module(module), name)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args[0] in _SLOW and not {"-h", "--help"}.intersection(args):
            from sandpool.cli.progress import Progress

            Progress().step(_SLOW[args[0]])
        if args[0] in COMMANDS or args[0] in ALIASES or args[0].startswith("-"):
            return super().resolve_command(ctx, args)
        from difflib import get_close_matches  # slow to import, and needed for errors only

        close = get_close_matches(args[0], [*COMMANDS, *ALIASES, *_HABITS])
        meant = dict.fromkeys(_HABITS.get(each, each) for each in close)
        advice = f" Did you mean {' or '.join(meant)}?" if meant else ""
        raise click.UsageError(f"there is no command {args[0]!r}.{advice}", ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, group in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, (_, text) in group.items()])

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **options: Any) -> click.Context:
        words = tuple(args)
        with _failures(words):  # --help and --version print already here
            context = super().make_context(info_name, args, *more, **options)
        context.obj = words
        return context

    def invoke(self, ctx: click.Context) -> Any:
        with _failures(ctx.obj or ()):
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result


@contextmanager
def _failures(words: Sequence[str] = ()) -> Iterator[None]:
    """Turn expected failures into one-line messages, and a reader that is gone into success.

    ``words`` are those of the command line. One that is not UTF-8 has its bytes as surrogates, which may be the name of
    a local file; wherever else it is used, encoding it fails in one of many ways."""
    try:
        yield
    except click.ClickException as error:
        as_click(error)
        raise
    except (click.exceptions.Exit, click.Abort):
        raise
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _is_unread(sys.stdout):
            # `sandpool ... | head`: the reader has what it wanted. Nothing more can be written, also not at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise click.exceptions.Exit(0) from None
        message = as_click(error)
        if message is None and (word := next(filter(is_no_text, words), None)) is not None:
            message = click.ClickException(printable(f"the argument {word!r} is not UTF-8 text"))
        if message is None or os.environ.get(TRACEBACK):
            raise
        raise message from error


def is_no_text(word: str) -> bool:
    """Whether a word of a command line is not UTF-8."""
    return any("\ud800" <= character <= "\udfff" for character in word)


def as_click(error: Exception) -> click.ClickException | None:
    """The error as click shows it; None if only a defect of the program explains it."""
    if isinstance(error, click.ClickException):
        error.message = printable(error.message)  # type: ignore[misc]  # it may quote an object or a sandbox
        return error
    from sandpool.cli.errors import explain

    message = explain(error)
    return None if message is None else click.ClickException(printable(message))


def fail(error: Exception) -> NoReturn:
    """End the program as a command does that raises ``error``."""
    try:
        with _failures():
            raise error
    except click.ClickException as shown:
        shown.show()
        sys.exit(shown.exit_code)
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)


def _is_unread(output: TextIO) -> bool:
    """Whether the output is a pipe whose reading end was closed."""
    poll = select.poll()
    poll.register(output.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


@click.group(cls=GroupedCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sandpool")
def main() -> None:
    """Agent sandboxes, warm and handed out exactly once."""


if __name__ == "__main__":
    main()
