"""The connection of the everyday commands: the first one starts a home and says what that home lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from click.testing import CliRunner

from sandpool.cli.main import main
from sandpool.cli.sessions import Target
from sandpool.home import start
from sandpool.home.discovery import Home, announced
from tests.cli.test_home_commands import user  # noqa: F401 - a fixture
from tests.home.test_connection import kubeconfig
from tests.home.test_discovery import default_dir, home_in

NOWHERE = Target(None, None, None)


@pytest.fixture
def starting(user: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:  # noqa: F811
    """Makes the start of a home announce one whose node describes itself so."""
    with ExitStack() as homes:

        def prepare(node: str) -> None:
            home = home_in(default_dir(user), node=node)
            kubeconfig(home.kubeconfig, "sandpool", 3)

            def ensure_running(progress: Callable[[str], None], **_: Any) -> Home:
                progress("starting the local home")
                return homes.enter_context(announced(home, user))

            monkeypatch.setattr(start, "ensure_running", ensure_running)

        yield prepare


def test_a_home_of_root_lacks_nothing(starting: Callable[[str], None], capsys: pytest.CaptureFixture[str]) -> None:
    starting("vm runs pods confined by bwrap")
    NOWHERE.connection(start_home=True)
    assert capsys.readouterr().err == "starting the local home\n"


@pytest.mark.parametrize(
    "words",
    [("run", "true"), ("claim",), ("template", "create", "data", "--image", "data"), ("pool", "create", "data")],
)
def test_whatever_makes_something_starts_the_home(
    words: tuple[str, ...],
    starting: Callable[[str], None],
    user: dict[str, str],  # noqa: F811
) -> None:
    starting("vm runs pods confined by bwrap")
    result = CliRunner().invoke(main, words)
    # The home of this test does not answer.
    assert (result.exit_code, result.output.splitlines()[0]) == (1, "starting the local home")


@pytest.mark.parametrize("words", [("ls",), ("pool", "ls"), ("release", "mine"), ("exec", "mine", "true")])
def test_whatever_needs_something_that_was_made_starts_nothing(
    words: tuple[str, ...],
    starting: Callable[[str], None],
    user: dict[str, str],  # noqa: F811
) -> None:
    starting("vm runs pods confined by bwrap")
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 1
    assert "start a home with `sandpool up`" in result.output


def test_run_without_root_says_once_what_is_missing(
    starting: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    starting("vm runs pods confined by bwrap\nlimits are not enforced\npods have no network")
    NOWHERE.connection(start_home=True)
    NOWHERE.connection(start_home=True)
    lines = capsys.readouterr().err.splitlines()
    assert lines[:3] == ["starting the local home", "note: limits are not enforced", "note: pods have no network"]
    assert len([line for line in lines if "not enforced" in line]) == 1


def test_run_on_a_machine_that_cannot_run_pods_says_why(
    starting: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    starting("vm cannot run pods: bwrap: no user namespaces")
    NOWHERE.connection(start_home=True)
    assert "note: vm cannot run pods: bwrap: no user namespaces\n" in capsys.readouterr().err
