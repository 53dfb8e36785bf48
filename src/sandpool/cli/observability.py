"""Logging and tracing options of the long-running commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from sandpool.cli.flags import switch
from sandpool.engine.jsonl import JsonlWriter
from sandpool.engine.logging import FORMATS, configure_logging
from sandpool.engine.tracing import Tracing, open_tracing

F = TypeVar("F", bound=Callable[..., Any])

# Service name of traces; OTEL_SERVICE_NAME overrides it.
SERVICE: Final = "agent-sandbox-controller"
LEVELS: Final = ("debug", "info", "warning", "error")


def log_options(form: str) -> Callable[[F], F]:
    """Add ``--log-format`` with the default ``form`` and ``--log-level``, the arguments of ``configure_logging``."""

    def decorate(command: F) -> F:
        level = click.option(
            "--log-level", type=click.Choice(LEVELS), default="info", show_default=True, help="Minimum severity to log."
        )
        log_format = click.option(
            "--log-format",
            type=click.Choice(FORMATS),
            default=form,
            show_default=True,
            help="Format of the log on standard error.",
        )
        return log_format(level(command))

    return decorate


def begin(log_format: str, log_level: str) -> None:
    configure_logging(log_format, log_level.upper())


def pass_option(command: F) -> F:
    """Add ``--pass-log``, the argument of ``reconcile_log``."""
    return click.option(
        "--pass-log",
        type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
        help="File for one JSON object per reconcile, read by `sandpool trace`; - is standard output.",
    )(command)


def reconcile_log(path: Path | None) -> JsonlWriter | None:
    """Open the reconcile log. Raises ``OSError`` if it cannot be written."""
    return JsonlWriter(path) if path is not None else None


def trace_option(command: F) -> F:
    """Add ``--enable-tracing``, the argument of ``traces``."""
    return switch("--enable-tracing", False, "Export OpenTelemetry traces to OTEL_EXPORTER_OTLP_ENDPOINT.")(command)


def traces(enabled: bool) -> Tracing | None:
    return open_tracing(True, SERVICE) if enabled else None
