"""``sandpool completion``: print the completion script of a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "fish", "zsh")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print a script that completes commands and options of sandpool in SHELL.

    \b
    bash: sandpool completion bash > ~/.local/share/bash-completion/completions/sandpool
    zsh:  sandpool completion zsh > a file _sandpool in a directory of $fpath
    fish: sandpool completion fish > ~/.config/fish/completions/sandpool.fish"""
    from sandpool.cli.main import main

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(main, {}, "sandpool", "_SANDPOOL_COMPLETE").source())
