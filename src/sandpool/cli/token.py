"""``sandpool token``: issue a token for sandboxes, for a router with scoped tokens."""

from __future__ import annotations

from pathlib import Path

import click

from sandpool.cli.flags import duration
from sandpool.cli.routing import scoped_tokens
from sandpool.engine.clock import SystemClock
from sandpool.router.tokens import ALL, TokenScope


@click.command()
@click.argument("sandboxes", nargs=-1, metavar="SANDBOX...")
@click.option("--namespace", "-n", default="default", show_default=True, help="Namespace of the sandboxes.")
@click.option("--all", "everything", is_flag=True, help="Grant all sandboxes of the namespace, also future ones.")
@click.option(
    "--secret-file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    required=True,
    help="Secret of the router, at least 32 bytes; of sandpool up: router-secret, beside its kubeconfig.",
)
@duration("--valid-for", "1h", "Lifetime of the token.", positive=True)
def token(sandboxes: tuple[str, ...], namespace: str, everything: bool, secret_file: Path, valid_for: float) -> None:
    """Print a token that grants access to each SANDBOX. Its holder needs nothing else: keep it like a password."""
    if bool(sandboxes) == everything:
        raise click.UsageError("name the sandboxes, or give --all")
    signer = scoped_tokens("--secret-file", secret_file)
    until = int(SystemClock().now().timestamp() + valid_for)
    click.echo(signer.make(TokenScope(namespace, (ALL,) if everything else sandboxes, until)))
