from __future__ import annotations

import pytest

from tests.support.soak.command_log import Broken, Fate, Ledger


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger("somebody")
    ledger.commanded("yes", Fate.DONE)
    ledger.commanded("no", Fate.REFUSED)
    ledger.commanded("perhaps", Fate.UNKNOWN)
    return ledger


@pytest.mark.parametrize("words", [["yes"], ["yes", "perhaps"], ["perhaps", "yes"]])
def test_consistent_commands_are_accepted(ledger: Ledger, words: list[str]) -> None:
    ledger.check_commands(words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "said to be done ran 0 times: yes"),
        (["yes", "yes"], "said to be done ran 2 times: yes"),
        (["yes", "no"], "said to be refused ran 1 times: no"),
        (["yes", "perhaps", "perhaps"], "said to be unknown ran 2 times: perhaps"),
        (["yes", "other"], r"what nobody here has asked for: \['other'\]"),
    ],
)
def test_inconsistent_commands_are_reported(ledger: Ledger, words: list[str], message: str) -> None:
    with pytest.raises(Broken, match=message):
        ledger.check_commands(words)


def test_acknowledged_file_must_have_its_content(ledger: Ledger) -> None:
    ledger.wrote("file", b"1", Fate.DONE)
    ledger.check_file("file", b"1")
    for other in (None, b"2"):
        with pytest.raises(Broken, match="file was acknowledged"):
            ledger.check_file("file", other)


def test_unacknowledged_write_may_or_may_not_be_there(ledger: Ledger) -> None:
    ledger.wrote("file", b"1", Fate.DONE)
    ledger.wrote("file", b"2", Fate.UNKNOWN)
    ledger.wrote("file", b"3", Fate.REFUSED)
    ledger.wrote("new", b"4", Fate.UNKNOWN)
    for content in (b"1", b"2"):
        ledger.check_file("file", content)
    for maybe in (None, b"4"):
        ledger.check_file("new", maybe)
    wrong: list[tuple[str, bytes | None]] = [("file", None), ("file", b"3"), ("new", b"1")]
    for name, found in wrong:
        with pytest.raises(Broken):
            ledger.check_file(name, found)


def test_files_of_a_deleted_pod_are_not_expected(ledger: Ledger) -> None:
    ledger.wrote("file", b"1", Fate.DONE)
    ledger.lost_all()
    ledger.check_commands([])
    assert ledger.files == []
