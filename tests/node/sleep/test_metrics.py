"""What metrics show of sleep."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sandpool.api.labels import IDLE_FREEZE_AFTER
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.node.sleep.metrics import WAKES, report_sleep
from sandpool.service.waking import WakeFailed, Waker

if TYPE_CHECKING:
    from tests.node.sleep.conftest import SleepRig


async def test_wake_duration_is_the_time_of_the_attempt(sleepy: SleepRig) -> None:
    metrics, waker = MetricsRegistry(), Waker(sleepy.node.client)
    report_sleep(sleepy.node.agent.sleep, waker, metrics)
    waker.done(True, 0.5)
    waker.done(True, 2.0)
    found = metrics.histogram(WAKES).series[("success",)]
    assert (sum(found[0]), found[1]) == (2, 2.5)


async def test_metrics_count_frozen_pods_and_attempts_to_resume(sleepy: SleepRig) -> None:
    metrics, waker = MetricsRegistry(), Waker(sleepy.node.client)
    report_sleep(sleepy.node.agent.sleep, waker, metrics)
    await sleepy.create({IDLE_FREEZE_AFTER: "1m"})
    assert "sandpool_sleep_frozen_pods 0.0" in (await metrics.render())[0].decode()
    await sleepy.node.passes(61)
    with pytest.raises(WakeFailed):
        await waker.wake("default", "none")
    text = (await metrics.render())[0].decode()
    assert "sandpool_sleep_frozen_pods 1.0" in text
    assert 'sandpool_sleep_transitions_total{to="frozen"} 1.0' in text
    assert 'sandpool_sleep_wake_duration_seconds_count{result="failure"} 1.0' in text
    await sleepy.worker().ensure_thawed()
    assert "sandpool_sleep_frozen_pods 0.0" in (await metrics.render())[0].decode()
