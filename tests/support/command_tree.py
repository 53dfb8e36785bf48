"""All commands of ``sandpool``, as a user types them."""

from __future__ import annotations

from collections.abc import Iterator

import click

from sandpool.cli.main import main


def all_commands() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield the words and the command of everything that can be run."""
    context = click.Context(main)
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        yield from _below((name,), command)


def _below(words: tuple[str, ...], command: click.Command) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            yield from _below((*words, name), each)
    else:
        yield words, command
