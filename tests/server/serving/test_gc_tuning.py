from __future__ import annotations

import gc
from pathlib import Path

import pytest

from sandpool.server.serving import gc_tuning
from sandpool.server.serving.gc_tuning import busy_seconds, tidied
from sandpool.testing.clock import ManualClock


class Collector:
    """Takes the place of Python's: ``objects`` have been made, ``calls`` came since."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, objects: int) -> None:
        self.calls = 0
        monkeypatch.setattr(gc, "get_count", lambda: (objects, 0, 0))
        monkeypatch.setattr(gc, "collect", self.collect)

    def collect(self, generation: int = 2) -> int:
        self.calls += 1
        return 0


@pytest.mark.parametrize(("objects", "calls"), [(10_000, 1), (100, 0)])
async def test_garbage_is_collected_when_the_loop_is_idle(
    monkeypatch: pytest.MonkeyPatch, objects: int, calls: int
) -> None:
    clock, collector = ManualClock(), Collector(monkeypatch, objects)
    async with tidied(clock, lambda: 0.0):
        await clock.settle()
        await clock.advance(0.9)
        assert collector.calls == 0
        await clock.advance(0.1)
        assert collector.calls == calls
    await clock.advance(10.0)
    assert collector.calls == calls, "collection is off"


async def test_garbage_collection_waits_while_the_loop_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, collector, busy = ManualClock(), Collector(monkeypatch, 10_000), [0.0]
    async with tidied(clock, lambda: busy[0]):
        for _ in range(3):
            await clock.settle()
            busy[0] += 0.5
            await clock.advance(1.0)
            assert collector.calls == 0
        await clock.advance(1.0)
        assert collector.calls == 1


def test_time_waiting_for_a_cpu_counts_as_busy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    counted = tmp_path / "schedstat"
    counted.write_text("1500000000 2500000000 42\n")
    monkeypatch.setattr(gc_tuning, "_SCHEDULED", counted)
    assert busy_seconds() == 4.0


def test_missing_schedstat_falls_back_to_cpu_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gc_tuning, "_SCHEDULED", tmp_path / "missing")
    before = busy_seconds()
    assert 0.0 <= before <= busy_seconds()
