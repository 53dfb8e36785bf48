"""Flags as programs of Kubernetes spell them."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from sandpool.cli.flags import duration, switch


@click.command()
@switch("--on", True, "")
@switch("--off", False, "")
@duration("--time", "1m", "", positive=True)
@duration("--pause", "0", "")
def command(on: bool, off: bool, time: float, pause: float) -> None:
    click.echo(f"{on} {off} {time:g} {pause:g}")


@pytest.mark.parametrize(
    ("arguments", "understood"),
    [
        ([], "True False 60 0"),
        (["--on", "--off"], "True True 60 0"),
        (["--on=false", "--off=true"], "False True 60 0"),
        (["--on=0", "--off", "1"], "False True 60 0"),
        (["--time", "300ms"], "True False 0.3 0"),
        (["--time=1h15m30.5s", "--pause=1.5s"], "True False 4530.5 1.5"),
        (["--time=2us"], "True False 2e-06 0"),
    ],
)
def test_flag_spellings_of_kubernetes_are_accepted(arguments: list[str], understood: str) -> None:
    result = CliRunner().invoke(command, arguments)
    assert result.output == understood + "\n"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--time", "5"], "'5' is not a duration: use a form like 30s, 5m or 1h30m"),
        (["--time", ""], "'' is not a duration"),
        (["--time", "5m 3s"], "'5m 3s' is not a duration"),
        (["--time", "-5m"], "'-5m' is not a duration"),
        (["--time", "0"], "'0' must be more than 0"),
        (["--time", "0s"], "'0s' must be more than 0"),
        (["--on=perhaps"], "'perhaps' is not a valid boolean"),
    ],
)
def test_invalid_flag_values_are_rejected(arguments: list[str], complaint: str) -> None:
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 2
    assert complaint in result.output
