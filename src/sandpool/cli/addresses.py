"""Options that are addresses to listen on. Not among the other flags, because checking them takes a web server."""

from __future__ import annotations

import click

from sandpool.engine.health import parse_address


def address(option: str, value: str) -> str:
    """The value of an option, or the complaint that it is no address."""
    try:
        parse_address(value)
    except ValueError as error:
        raise click.ClickException(f"{option}: {error}") from None
    return value
