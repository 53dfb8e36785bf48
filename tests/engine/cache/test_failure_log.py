from __future__ import annotations

import logging
from random import Random

import pytest

from sandpool.engine.cache.reflector import FailureLog
from sandpool.kube.errors import TooManyRequests

log = logging.getLogger("test")


def test_backoff_grows_to_30_seconds_with_jitter() -> None:
    failures = FailureLog("it", Random(0), log)
    pauses = [failures.failed(ConnectionError(), "again") for _ in range(12)]
    for number, pause in enumerate(pauses):
        most = min(0.1 * 2**number, 30)
        assert most / 2 <= pause <= most
    assert failures.total == 12


def test_success_resets_the_backoff() -> None:
    failures = FailureLog("it", Random(0), log)
    for _ in range(9):
        failures.failed(ConnectionError(), "again")
    failures.ended()
    assert failures.failed(ConnectionError(), "again") <= 0.1
    assert failures.total == 10


def test_backoff_honours_the_delay_the_server_asks_for() -> None:
    failures = FailureLog("it", Random(0), log)
    assert failures.failed(TooManyRequests("no", details={"retryAfterSeconds": 7}), "again") == 7


def test_each_kind_of_failure_and_the_recovery_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    failures = FailureLog("it", Random(0), log)
    for error in (ConnectionError("lost"), ConnectionError("lost"), ZeroDivisionError(), ConnectionError("lost")):
        failures.failed(error, "trying again")
    failures.ended()
    failures.ended()
    failures.failed(ConnectionError("lost"), "trying again")
    assert [(record.levelname, record.message, bool(record.exc_info)) for record in caplog.records] == [
        ("WARNING", "it failed: lost; trying again", False),
        ("ERROR", "it failed: ZeroDivisionError; trying again", True),
        ("INFO", "it works again after 4 failures", False),
        ("WARNING", "it failed: lost; trying again", False),
    ]
