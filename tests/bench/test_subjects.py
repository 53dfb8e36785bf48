from __future__ import annotations

import os
import time

from sandpool.bench.subjects import cpu_seconds, starved_seconds


def test_work_costs_processor_time() -> None:
    before = cpu_seconds(os.getpid())
    while time.process_time() < before + 0.05:
        sum(range(1000))
    assert cpu_seconds(os.getpid()) > before


def test_a_process_can_only_wait_longer() -> None:
    before = starved_seconds(os.getpid())
    assert 0 <= before <= starved_seconds(os.getpid())
