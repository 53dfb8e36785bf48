from __future__ import annotations

import pytest

from tests.support.soak.command_log import Broken, CommandLog, Fate


@pytest.fixture
def command_log() -> CommandLog:
    command_log = CommandLog("another")
    command_log.commanded("yes", Fate.DONE)
    command_log.commanded("no", Fate.REFUSED)
    command_log.commanded("perhaps", Fate.UNKNOWN)
    return command_log


@pytest.mark.parametrize("words", [["yes"], ["yes", "perhaps"], ["perhaps", "yes"]])
def test_consistent_commands_are_accepted(command_log: CommandLog, words: list[str]) -> None:
    command_log.check_commands(words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "said to be done ran 0 times: yes"),
        (["yes", "yes"], "said to be done ran 2 times: yes"),
        (["yes", "no"], "said to be refused ran 1 times: no"),
        (["yes", "perhaps", "perhaps"], "said to be unknown ran 2 times: perhaps"),
        (["yes", "other"], r"commands that were never sent: \['other'\]"),
    ],
)
def test_inconsistent_commands_are_reported(command_log: CommandLog, words: list[str], message: str) -> None:
    with pytest.raises(Broken, match=message):
        command_log.check_commands(words)


def test_acknowledged_file_must_have_its_content(command_log: CommandLog) -> None:
    command_log.wrote("file", b"1", Fate.DONE)
    command_log.check_file("file", b"1")
    for other in (None, b"2"):
        with pytest.raises(Broken, match="file was acknowledged"):
            command_log.check_file("file", other)


def test_unacknowledged_write_may_or_may_not_be_there(command_log: CommandLog) -> None:
    command_log.wrote("file", b"1", Fate.DONE)
    command_log.wrote("file", b"2", Fate.UNKNOWN)
    command_log.wrote("file", b"3", Fate.REFUSED)
    command_log.wrote("new", b"4", Fate.UNKNOWN)
    for content in (b"1", b"2"):
        command_log.check_file("file", content)
    for maybe in (None, b"4"):
        command_log.check_file("new", maybe)
    wrong: list[tuple[str, bytes | None]] = [("file", None), ("file", b"3"), ("new", b"1")]
    for name, found in wrong:
        with pytest.raises(Broken):
            command_log.check_file(name, found)


def test_files_of_a_deleted_pod_are_not_expected(command_log: CommandLog) -> None:
    command_log.wrote("file", b"1", Fate.DONE)
    command_log.lost_all()
    command_log.check_commands([])
    assert command_log.files == []
