"""Readiness notification, in the protocol of systemd."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from sandpool.home.notification import Notifier, ReadinessSocket


def test_a_service_reports_its_steps_and_then_that_it_is_ready(tmp_path: Path) -> None:
    said: list[str] = []
    with closing(ReadinessSocket(tmp_path / "notify")) as receiver:
        service = Notifier({"NOTIFY_SOCKET": str(receiver.path)})
        service.status("opening the database")
        service.ready("serving")
        service.status("after that")
        assert receiver.wait(10.0, lambda: True, said.append)
    assert said == ["opening the database"]


def test_a_service_that_ends_without_a_word_is_not_ready(tmp_path: Path) -> None:
    with closing(ReadinessSocket(tmp_path / "notify")) as receiver:
        assert not receiver.wait(10.0, lambda: False, lambda text: None)


def test_the_wait_ends_in_time(tmp_path: Path) -> None:
    with closing(ReadinessSocket(tmp_path / "notify")) as receiver:
        assert not receiver.wait(0.0, lambda: True, lambda text: None)


def test_without_a_service_manager_nothing_is_sent(tmp_path: Path) -> None:
    Notifier({}).ready("serving")
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready("serving")
