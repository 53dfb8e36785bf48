from __future__ import annotations

import os
import time

from sandpool.bench.subjects import cpu_seconds, starved_seconds


def test_cpu_seconds_grow_with_work() -> None:
    before = cpu_seconds(os.getpid())
    while time.process_time() < before + 0.05:
        sum(range(1000))
    assert cpu_seconds(os.getpid()) > before


def test_run_delay_never_decreases() -> None:
    before = starved_seconds(os.getpid())
    assert 0 <= before <= starved_seconds(os.getpid())
