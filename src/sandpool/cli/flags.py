"""Flag values in the syntax of Kubernetes programs, so that the arguments of existing manifests work here.

``--leader-elect``, ``--leader-elect=true`` and ``--leader-elect=false`` are all accepted, and ``1m30s`` is a duration.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from sandpool.api.times import parse_seconds

F = TypeVar("F", bound=Callable[..., Any])


def switch(name: str, default: bool, help_text: str) -> Callable[[F], F]:
    """Return a boolean option that is true when given without a value."""
    shown = "on" if default else "off"
    return click.option(name, type=bool, is_flag=False, flag_value=True, default=default, help=f"{help_text} [{shown}]")


def duration(
    name: str, default: str, help_text: str, *, positive: bool = False, automatic: str | None = None
) -> Callable[[F], F]:
    """Return an option whose value is a duration such as ``300ms`` or ``1h15m30s``, passed on as seconds.

    ``automatic`` is the word that leaves the choice to the program; the command then receives None.
    """

    def read(context: click.Context, option: click.Parameter, value: str) -> float | None:
        if value == automatic:
            return None
        seconds = parse_seconds(value)
        if seconds is None:
            raise click.BadParameter(f"{value!r} is not a duration: use a form like 30s, 5m or 1h30m")
        if positive and seconds <= 0:
            raise click.BadParameter(f"{value!r} must be more than 0")
        return seconds

    return click.option(name, callback=read, metavar="TIME", default=default, show_default=True, help=help_text)


class Quantity(click.ParamType[str]):
    """An amount in the syntax of Kubernetes. ``examples`` are what the message for another text shows."""

    name = "quantity"

    def __init__(self, examples: str) -> None:
        self.examples = examples

    def convert(self, value: str, parameter: click.Parameter | None, context: click.Context | None) -> str:
        from sandpool.api.quantity import parse

        try:
            amount = parse(value)
        except ValueError:
            return self.fail(f"{value!r} is not an amount: use a form like {self.examples}", parameter, context)
        if amount.billionths <= 0:
            return self.fail(f"{value!r} must be more than 0", parameter, context)
        return value


CPUS: Final = Quantity("2, 0.5 or 500m (thousandths of a CPU)")
BYTES: Final = Quantity("512Mi, 2Gi or 2G")
