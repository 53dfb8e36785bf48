"""Options that are listen addresses. A module of its own because the check imports the HTTP server."""

from __future__ import annotations

import click

from sandpool.engine.health import parse_address
from sandpool.kube.connection import is_loopback


def address(option: str, value: str) -> str:
    """Return the value of an option. Raises ``ClickException`` if it is not an address."""
    try:
        parse_address(value)
    except ValueError as error:
        raise click.ClickException(f"{option}: {error}") from None
    return value


def require_loopback(option: str, value: str, host: str, remedy: str) -> None:
    """Raise ``ClickException`` for an address that other machines reach: without TLS they would read what is secret."""
    if not is_loopback(host):
        raise click.ClickException(f"{option} {value} is reachable from other machines: {remedy}")
