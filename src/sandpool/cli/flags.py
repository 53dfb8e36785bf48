"""Values of flags as programs of Kubernetes spell them, so that a manifest written for one of those works here.

``--leader-elect``, ``--leader-elect=true`` and ``--leader-elect=false`` are all understood, and ``1m30s`` is a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(h|ms|us|µs|ns|m|s)")


def switch(name: str, default: bool, help: str) -> Callable[[F], F]:
    """An option that is on when given without a value."""
    shown = "on" if default else "off"
    return click.option(name, type=bool, is_flag=False, flag_value=True, default=default, help=f"{help} [{shown}]")


def duration(
    name: str, default: str, help: str, *, positive: bool = False, automatic: str | None = None
) -> Callable[[F], F]:
    """An option that is a time such as ``300ms`` or ``1h15m30s``; a float of seconds, for the command. ``automatic`` is
    the word for leaving it to the program, which is told None."""

    def read(context: click.Context, option: click.Parameter, value: str) -> float | None:
        if value == automatic:
            return None
        seconds = _seconds(value)
        if seconds is None:
            raise click.BadParameter(f"{value!r} is not a time: it should look like 30s, 5m or 1h30m")
        if positive and seconds <= 0:
            raise click.BadParameter(f"{value!r} should be more than 0")
        return seconds

    return click.option(name, callback=read, metavar="TIME", default=default, show_default=True, help=help)


def _seconds(text: str) -> float | None:
    """A number without unit means nothing, except 0."""
    if text == "0":
        return 0.0
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in parts)
