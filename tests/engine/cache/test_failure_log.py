from __future__ import annotations

import logging
from random import Random

import pytest

from sandpool.engine.cache.reflector import FailureLog
from sandpool.kube.errors import TooManyRequests

log = logging.getLogger("test")


def test_pauses_grow_to_half_a_minute_and_are_jittered() -> None:
    streak = FailureLog("it", Random(0), log)
    pauses = [streak.failed(ConnectionError(), "again") for _ in range(12)]
    for number, pause in enumerate(pauses):
        most = min(0.1 * 2**number, 30)
        assert most / 2 <= pause <= most
    assert streak.total == 12


def test_a_success_begins_anew() -> None:
    streak = FailureLog("it", Random(0), log)
    for _ in range(9):
        streak.failed(ConnectionError(), "again")
    streak.ended()
    assert streak.failed(ConnectionError(), "again") <= 0.1
    assert streak.total == 10


def test_the_server_may_ask_for_a_longer_pause() -> None:
    streak = FailureLog("it", Random(0), log)
    assert streak.failed(TooManyRequests("no", details={"retryAfterSeconds": 7}), "again") == 7


def test_each_kind_of_failure_is_reported_once_and_so_is_the_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    streak = FailureLog("it", Random(0), log)
    for error in (ConnectionError("lost"), ConnectionError("lost"), ZeroDivisionError(), ConnectionError("lost")):
        streak.failed(error, "trying again")
    streak.ended()
    streak.ended()
    streak.failed(ConnectionError("lost"), "trying again")
    assert [(record.levelname, record.message, bool(record.exc_info)) for record in caplog.records] == [
        ("WARNING", "it failed: lost; trying again", False),
        ("ERROR", "it failed: ZeroDivisionError; trying again", True),
        ("INFO", "it works again after 4 failures", False),
        ("WARNING", "it failed: lost; trying again", False),
    ]
