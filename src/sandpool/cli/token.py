"""``sandpool token``: a token for one sandbox, for a router that lets only holders of such tokens pass."""

from __future__ import annotations

from pathlib import Path

import click

from sandpool.cli.flags import duration
from sandpool.cli.routing import scoped_tokens
from sandpool.engine.clock import SystemClock
from sandpool.router.tokens import TokenScope


@click.command()
@click.argument("sandbox")
@click.option("--namespace", "-n", default="default", show_default=True, help="Of the sandbox.")
@click.option(
    "--secret-file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    required=True,
    help="The secret of the router, at least 32 bytes.",
)
@duration("--valid-for", "1h", "How long the token opens the sandbox.", positive=True)
def token(sandbox: str, namespace: str, secret_file: Path, valid_for: float) -> None:
    """Print a token that lets its holder into SANDBOX, whoever that is: keep it as you would a password."""
    tokens = scoped_tokens("--secret-file", secret_file)
    until = int(SystemClock().now().timestamp() + valid_for)
    click.echo(tokens.make(TokenScope(namespace, sandbox, until)))
