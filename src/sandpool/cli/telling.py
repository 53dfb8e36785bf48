"""How a command that runs for long tells what it does: its log, and traces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from sandpool.cli.flags import switch
from sandpool.engine import logs
from sandpool.engine.tracing import Tracing, open_tracing

F = TypeVar("F", bound=Callable[..., Any])

# What traces call us, unless OTEL_SERVICE_NAME says otherwise.
SERVICE: Final = "agent-sandbox-controller"
LEVELS: Final = ("debug", "info", "warning", "error")


def log_options(form: str) -> Callable[[F], F]:
    """``--log-format``, ``form`` unless given, and ``--log-level``: the arguments of ``logs.configure``."""

    def decorate(command: F) -> F:
        level = click.option(
            "--log-level", type=click.Choice(LEVELS), default="info", show_default=True, help="What is worth a line."
        )
        format = click.option(
            "--log-format",
            type=click.Choice(logs.FORMATS),
            default=form,
            show_default=True,
            help="Form of the log, on standard error.",
        )
        return format(level(command))

    return decorate


def begin(log_format: str, log_level: str) -> None:
    logs.configure(log_format, log_level.upper())


def trace_option(command: F) -> F:
    """``--enable-tracing``: the argument of ``traces``."""
    return switch("--enable-tracing", False, "Send traces to OTEL_EXPORTER_OTLP_ENDPOINT.")(command)


def traces(enabled: bool) -> Tracing | None:
    return open_tracing(True, SERVICE) if enabled else None
