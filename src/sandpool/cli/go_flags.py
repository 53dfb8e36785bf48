"""Flags of the Go implementation of the controllers that have no effect here.

They are accepted, so that manifests of the Go implementation work unchanged. Each given flag is logged with the reason
why it has no effect.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

_log = logging.getLogger(__name__)

_CONVERSION: Final = "only one version of the API is served, so nothing is converted"
_PROFILES: Final = "profiles of Go programs cannot be taken here"

WITHOUT_EFFECT: Final = {
    "--extensions": "templates, pools and claims are always served",
    "--api-connections": "requests always use as many connections as they need",
    "--separate-watch-connection": "watches always have connections of their own",
    "--enable-pprof": _PROFILES,
    "--enable-pprof-debug": _PROFILES,
    "--pprof-block-profile-rate": _PROFILES,
    "--pprof-mutex-profile-fraction": _PROFILES,
    "--enable-webhook": _CONVERSION,
    "--webhook-port": _CONVERSION,
    "--webhook-cert-dir": _CONVERSION,
    "--webhook-cert-name": _CONVERSION,
    "--webhook-key-name": _CONVERSION,
    "--webhook-service-name": _CONVERSION,
    "--webhook-namespace": _CONVERSION,
    "--manage-webhook-certs": _CONVERSION,
    "--zap-devel": "see --log-format",
    "--zap-encoder": "see --log-format",
    "--zap-log-level": "see --log-level",
    "--zap-stacktrace-level": "bugs are always logged with a traceback",
    "--zap-time-encoding": "times are always logged in RFC 3339",
}


def accept_go_flags(command: F) -> F:
    """Accept these flags without passing them to the command."""
    for name in WITHOUT_EFFECT:
        command = click.option(
            name, is_flag=False, flag_value="true", hidden=True, expose_value=False, callback=_given
        )(command)
    return command


def warn() -> None:
    """Log a warning for each such flag on the current command line."""
    for name in click.get_current_context().meta.get(__name__, ()):
        _log.warning("%s has no effect: %s", name, WITHOUT_EFFECT[name])


def _given(context: click.Context, option: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.meta.setdefault(__name__, []).append(option.opts[0])
