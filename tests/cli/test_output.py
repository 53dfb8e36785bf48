"""Output of commands that shows text of objects and sandboxes."""

from __future__ import annotations

import json
from collections.abc import Callable

import click
import pytest
import yaml
from click.testing import CliRunner

from sandpool.cli import status
from sandpool.cli.main import GroupedCommands
from sandpool.cli.output import Column, show, show_document, table
from sandpool.cli.why import lines
from sandpool.explain.claim import Explanation, Link
from sandpool.service.errors import FileError

HOSTILE = "\x1b]0;owned\x07\x1b[2J\rall \x9b1m is \u202ewell"
OBEYED = "\x1b\x07\r\x9b\u202e"


def assert_harmless(shown: str) -> None:
    assert "owned" in shown
    assert not set(OBEYED) & set(shown)


def test_tables_and_names_show_escape_sequences_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert_harmless(table(["NAME"], [[HOSTILE]]).partition("\n")[2])
    assert_harmless("\n".join(status._list(("CLAIM",), [(HOSTILE,)])))
    columns = [Column[str]("NAME", str)]
    show([HOSTILE], columns, output="name", name=str, document=lambda row: {}, nothing="nothing")
    assert_harmless(capsys.readouterr().out)


@pytest.mark.parametrize(("output", "load"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_documents_show_escape_sequences_as_text(
    output: str, load: Callable[[str], object], capsys: pytest.CaptureFixture[str]
) -> None:
    show_document({"message": HOSTILE}, output)
    shown = capsys.readouterr().out
    assert_harmless(shown)
    assert load(shown) == {"message": HOSTILE}


def test_explanations_show_escape_sequences_as_text() -> None:
    for explanation in (
        Explanation(HOSTILE, ()),
        Explanation("owned", (Link(None, HOSTILE),)),
        Explanation("owned", (), HOSTILE),
        Explanation("owned", (), unknown=(HOSTILE,)),
    ):
        assert_harmless("\n".join(lines(explanation)))


@pytest.mark.parametrize("error", [FileError(HOSTILE), click.ClickException(HOSTILE), click.UsageError(HOSTILE)])
def test_errors_show_escape_sequences_as_text(error: Exception) -> None:
    class Failing(GroupedCommands):
        def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str, click.Command, list[str]]:
            raise error

    failed = CliRunner().invoke(Failing("sandpool"), ["cp"])
    assert failed.exit_code != 0
    assert_harmless(failed.output)
