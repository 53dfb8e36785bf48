from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from random import Random
from typing import Any, TypeVar

import pytest

from sandpool.api.kinds import POD
from sandpool.api.resource import Key
from sandpool.engine.controller import DEFAULT_PRIORITY, DONE, Controller, ReconcileIncomplete, Result
from sandpool.engine.metrics.controller import ERROR, REQUEUE_AFTER, SUCCESS
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.engine.workqueue.metrics import QueueMetrics
from sandpool.engine.workqueue.queue import WorkQueue
from sandpool.kube.errors import Conflict, Forbidden, TooManyRequests, namespace_terminating
from sandpool.server.controllers.namespaces import check_create
from sandpool.testing.clock import ManualClock

K = TypeVar("K", bound=Hashable)


class RecordedReconciles:
    """A reconcile function that records its calls and then runs the function of the test."""

    def __init__(self, does: Callable[[str], Awaitable[Result]] | None = None) -> None:
        self.clock = ManualClock()
        self.does = does
        self.log: list[tuple[float, str]] = []

    async def __call__(self, key: str) -> Result:
        self.log.append((round(self.clock.monotonic(), 6), key))
        return await self.does(key) if self.does is not None else DONE

    @property
    def keys(self) -> list[str]:
        return [key for _, key in self.log]

    @property
    def times(self) -> list[float]:
        return [when for when, _ in self.log]


class Bench:
    """An observer that records its calls."""

    def __init__(self) -> None:
        self.running = 0
        self.ends: list[tuple[str, float]] = []

    def began(self) -> None:
        self.running += 1

    def ended(self, result: str, seconds: float, error_kind: str = "") -> None:
        self.running -= 1
        self.ends.append((result, seconds))


def controller_of(recorded: RecordedReconciles, **options: Any) -> Controller[str]:
    controller = Controller("claim", recorded, recorded.clock, Random(0), **options)
    controller.backoff.jitter = 0
    return controller


@asynccontextmanager
async def running(controller: Controller[K]) -> AsyncIterator[Controller[K]]:
    task = asyncio.create_task(controller.run())
    try:
        yield controller
        assert not task.done(), "a controller does not end by itself"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def failing(key: str) -> Result:
    raise Conflict("not now")


async def test_controller_reconciles_enqueued_keys() -> None:
    recorded = RecordedReconciles()
    async with running(controller_of(recorded)) as controller:
        for key in ("a", "b", "a"):
            controller.enqueue(key)
        await recorded.clock.settle()
        assert recorded.keys == ["a", "b"]
        assert (controller.reconciles, controller.failures) == (2, 0)


async def test_controller_yields_to_other_tasks_between_reconciles_that_never_wait() -> None:
    recorded = RecordedReconciles()
    async with running(controller_of(recorded)) as controller:
        for number in range(100):
            controller.enqueue(str(number))
        turns: list[int] = []
        while len(recorded.log) < 100:
            await asyncio.sleep(0)
            turns.append(len(recorded.log))
        assert len(turns) >= 100, "one reconcile per iteration of the loop, with a hundred keys waiting"


async def test_controller_uses_the_given_queue() -> None:
    recorded = RecordedReconciles()
    queue: WorkQueue[str] = WorkQueue(group=lambda key: key[0])
    async with running(controller_of(recorded, queue=queue)) as controller:
        for key in ("a1", "a2", "b1"):
            queue.add(key)
        controller.enqueue("urgent", 1)
        await recorded.clock.settle()
    assert recorded.keys == ["urgent", "a1", "b1", "a2"]


async def test_key_is_never_reconciled_concurrently() -> None:
    inside, most = 0, 0

    async def reconcile(key: str) -> Result:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await recorded.clock.sleep(1)
        inside -= 1
        return DONE

    recorded = RecordedReconciles(reconcile)
    async with running(controller_of(recorded, workers=10)) as controller:
        for _ in range(28):
            controller.enqueue("a")
            await recorded.clock.advance(0.1)
    assert most == 1
    assert recorded.times == [0, 1, 2]


async def test_different_keys_are_reconciled_concurrently_by_all_workers() -> None:
    async def reconcile(key: str) -> Result:
        await recorded.clock.sleep(1)
        return DONE

    recorded = RecordedReconciles(reconcile)
    async with running(controller_of(recorded, workers=3)) as controller:
        for key in "abcde":
            controller.enqueue(key)
        await recorded.clock.advance(5)
    assert recorded.times == [0, 0, 0, 1, 1]


async def test_key_is_reconciled_again_after_requeue_after() -> None:
    async def reconcile(key: str) -> Result:
        return Result(requeue_after=30)

    recorded = RecordedReconciles(reconcile)
    async with running(controller_of(recorded)) as controller:
        controller.enqueue("a")
        await recorded.clock.advance(100)
    assert recorded.times == [0, 30, 60, 90]


async def test_each_reconcile_replaces_the_earlier_requeue_time() -> None:
    async def reconcile(key: str) -> Result:
        return Result(requeue_after=30)

    recorded = RecordedReconciles(reconcile)
    async with running(controller_of(recorded)) as controller:
        controller.enqueue("a")
        await recorded.clock.advance(20)
        controller.enqueue("a")
        await recorded.clock.advance(45)
        assert recorded.times == [0, 20, 50]


async def test_key_can_be_enqueued_for_later() -> None:
    recorded = RecordedReconciles()
    async with running(controller_of(recorded)) as controller:
        controller.enqueue_after("a", 10)
        controller.enqueue_after("a", 5)
        await recorded.clock.advance(60)
    assert recorded.times == [5]


async def test_requeue_after_zero_reconciles_at_once() -> None:
    async def reconcile(key: str) -> Result:
        return Result(requeue_after=0) if len(recorded.log) < 3 else DONE

    recorded = RecordedReconciles(reconcile)
    async with running(controller_of(recorded)) as controller:
        controller.enqueue("a")
        await recorded.clock.settle()
    assert recorded.times == [0, 0, 0]


async def test_failures_are_retried_with_growing_backoff_and_one_log_line_each(
    caplog: pytest.LogCaptureFixture,
) -> None:
    recorded = RecordedReconciles(failing)
    retries = QueueMetrics[str]("claim", MetricsRegistry(), recorded.clock)
    async with running(controller_of(recorded, queue=WorkQueue(observer=retries))) as controller:
        controller.enqueue("ns/a")
        await recorded.clock.advance(0.08)
        assert recorded.times == [0, 0.005, 0.015, 0.035, 0.075]
        assert controller.failures == 5
        text, _ = await retries.metrics.render()
        assert 'workqueue_retries_total{controller="claim",name="claim"} 5.0' in text.decode()
    assert caplog.messages[:2] == [
        "claim ns/a failed 1 times in a row, next attempt in 0.005 s: not now",
        "claim ns/a failed 2 times in a row, next attempt in 0.01 s: not now",
    ]
    assert caplog.records[0].exc_info is None


async def test_first_expected_failures_of_a_tolerant_controller_are_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    recorded = RecordedReconciles(failing)
    async with running(controller_of(recorded, quiet_failures=4)) as controller:
        controller.enqueue("ns/a")
        await recorded.clock.advance(0.08)
    assert caplog.messages == ["claim ns/a failed 5 times in a row, next attempt in 0.08 s: not now"]


async def test_incomplete_reconcile_is_retried_without_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def reconcile(key: str) -> Result:
        raise ReconcileIncomplete("the pod has another owner")

    recorded = RecordedReconciles(reconcile)
    async with running(controller_of(recorded)) as controller:
        controller.enqueue("a")
        await recorded.clock.advance(0.006)
        assert recorded.times == [0, 0.005]
    assert caplog.messages[0].endswith("the pod has another owner")
    assert caplog.records[0].exc_info is None


@pytest.mark.parametrize("wrapped", [False, True])
async def test_key_in_a_terminating_namespace_is_retried_rarely_without_a_warning(
    caplog: pytest.LogCaptureFixture, wrapped: bool
) -> None:
    """The cause counts, whatever the message is."""
    caplog.set_level(logging.WARNING)

    async def refused(key: str) -> Result:
        try:
            check_create({"status": {"phase": "Terminating"}}, "team", POD, key)
        except Forbidden as error:
            if wrapped:
                raise ReconcileIncomplete("no pod", namespace_terminating=True) from error
            raise Forbidden("no pod", details=error.details) from error
        return DONE

    recorded = RecordedReconciles(refused)
    controller = controller_of(recorded)
    async with running(controller):
        controller.enqueue("a")
        await recorded.clock.settle()
        await recorded.clock.advance(299)
        assert len(recorded.log) == 1
        controller.enqueue("a")  # something has changed
        await recorded.clock.settle()
        assert len(recorded.log) == 2
        await recorded.clock.advance(300)
        assert len(recorded.log) == 3
    assert caplog.messages == []


@pytest.mark.parametrize("wrapped", [False, True])
async def test_message_about_a_terminating_namespace_without_the_cause_is_an_ordinary_failure(wrapped: bool) -> None:
    message = str(namespace_terminating(POD, "a", "team"))

    async def refused(key: str) -> Result:
        raise ReconcileIncomplete(message) if wrapped else Forbidden(message)

    recorded = RecordedReconciles(refused)
    async with running(controller_of(recorded)) as controller:
        controller.enqueue("a")
        await recorded.clock.advance(0.006)
        assert recorded.times == [0, 0.005]


async def test_terminating_namespace_is_logged_once_per_namespace(caplog: pytest.LogCaptureFixture) -> None:
    async def refused(key: Key) -> Result:
        raise namespace_terminating(POD, key.name, key.namespace)

    caplog.set_level(logging.INFO)
    clock = ManualClock()
    async with running(Controller("claim", refused, clock, Random(0))) as controller:
        for key in (Key("team", "a"), Key("team", "b"), Key("other", "a"), Key("team", "a")):
            controller.enqueue(key)
            await clock.settle()
        waits = "waits: its namespace is being deleted"
        ours = [message for message in caplog.messages if "namespace" in message]
        assert ours == [f"claim team/a {waits}", f"claim other/a {waits}"]
        await clock.advance(301)
        again = [message for message in caplog.messages if message.startswith("claim team/") and waits in message]
        assert len(again) == 2, "the namespace still exists"


async def test_success_resets_the_backoff() -> None:
    async def reconcile(key: str) -> Result:
        if len(recorded.log) in (1, 2, 4):
            raise Conflict("not now")
        return DONE

    recorded = RecordedReconciles(reconcile)
    async with running(controller_of(recorded)) as controller:
        controller.enqueue("a")
        await recorded.clock.advance(1)
        controller.enqueue("a")
        await recorded.clock.advance(1)
    assert recorded.times == [0, 0.005, 0.015, 1, 1.005]


async def test_r31_requeue_is_no_failure_and_its_delays_do_not_grow() -> None:
    async def reconcile(key: str) -> Result:
        return Result(requeue_after=0.01) if len(recorded.log) < 6 else DONE

    recorded = RecordedReconciles(reconcile)
    async with running(controller_of(recorded)) as controller:
        controller.enqueue("a")
        await recorded.clock.advance(10)
        assert controller.failures == 0
    assert recorded.times == [0, 0.01, 0.02, 0.03, 0.04, 0.05]


async def test_change_is_reconciled_during_the_backoff_of_its_key() -> None:
    async def reconcile(key: str) -> Result:
        if len(recorded.log) < 15:
            raise Conflict("not now")
        return DONE

    recorded = RecordedReconciles(reconcile)
    async with running(controller_of(recorded)) as controller:
        controller.enqueue("a")
        await recorded.clock.advance(50)
        assert len(recorded.log) == 14
        controller.enqueue("a")
        await recorded.clock.settle()
        assert len(recorded.log) == 15
        await recorded.clock.advance(1000)
        assert len(recorded.log) == 15


async def test_failing_key_keeps_its_priority() -> None:
    async def reconcile(key: str) -> Result:
        await recorded.clock.sleep(1)
        if key == "urgent" and len(recorded.log) == 1:
            raise Conflict("not now")
        return DONE

    recorded = RecordedReconciles(reconcile)
    async with running(controller_of(recorded)) as controller:
        controller.enqueue("urgent", 5)
        for key in "abc":
            controller.enqueue(key)
        await recorded.clock.advance(10)
    assert recorded.keys == ["urgent", "a", "urgent", "b", "c"]


async def test_requeued_key_keeps_its_priority() -> None:
    async def reconcile(key: str) -> Result:
        await recorded.clock.sleep(1)
        return Result(requeue_after=0.5) if len(recorded.log) == 1 else DONE

    recorded = RecordedReconciles(reconcile)
    async with running(controller_of(recorded)) as controller:
        controller.enqueue("urgent", 5)
        for key in "abc":
            controller.enqueue(key)
        await recorded.clock.advance(10)
    assert recorded.keys == ["urgent", "a", "urgent", "b", "c"]


async def test_retry_after_of_the_server_is_honoured() -> None:
    async def reconcile(key: str) -> Result:
        raise TooManyRequests("slow down", details={"retryAfterSeconds": 7})

    recorded = RecordedReconciles(reconcile)
    async with running(controller_of(recorded)) as controller:
        controller.enqueue("a")
        await recorded.clock.advance(10)
    assert recorded.times == [0, 7]


async def test_r38_fifteen_minutes_of_failures_cause_no_request_storm() -> None:
    async def reconcile(key: str) -> Result:
        if recorded.clock.monotonic() < 900:
            raise Conflict("mvcc: database space exceeded")
        return DONE

    recorded = RecordedReconciles(reconcile)
    async with running(controller_of(recorded, workers=5)) as controller:
        for number in range(10):
            controller.enqueue(str(number))
        await recorded.clock.advance(3600)
        assert len(controller.backoff) == 0
    assert len(recorded.log) <= 10 * 20
    assert {key for when, key in recorded.log if when >= 900} == {str(number) for number in range(10)}


async def test_unexpected_exception_is_logged_and_ends_no_worker(caplog: pytest.LogCaptureFixture) -> None:
    async def reconcile(key: str) -> Result:
        if key == "bad":
            raise ZeroDivisionError
        return DONE

    recorded = RecordedReconciles(reconcile)
    async with running(controller_of(recorded)) as controller:
        controller.enqueue("bad")
        controller.enqueue("good")
        await recorded.clock.settle()
        assert recorded.keys == ["bad", "good"]
    assert "claim bad failed 1 times in a row" in caplog.text
    assert "Traceback" in caplog.text
    assert caplog.records[0].levelno == logging.ERROR


async def test_reconcile_without_a_result_counts_as_a_failure() -> None:
    async def reconcile(key: str) -> Any:
        return None

    recorded = RecordedReconciles(reconcile)
    async with running(controller_of(recorded)) as controller:
        controller.enqueue("a")
        await recorded.clock.settle()
        assert controller.failures == 1


async def test_r42_cancellation_from_within_is_a_failure_and_ends_no_worker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def reconcile(key: str) -> Result:
        if len(recorded.log) == 1:
            raise asyncio.CancelledError
        return DONE

    recorded = RecordedReconciles(reconcile)
    async with running(controller_of(recorded)) as controller:
        controller.enqueue("a")
        await recorded.clock.advance(1)
        assert (len(recorded.log), controller.failures) == (2, 1)
    assert "claim a failed 1 times in a row, next attempt in 0.005 s: CancelledError" in caplog.text


async def test_observer_is_called_for_every_reconcile() -> None:
    async def reconcile(key: str) -> Result:
        await recorded.clock.sleep(2)
        if key == "bad" and len(recorded.log) == 3:
            raise Conflict("not now")
        return Result(requeue_after=100) if key == "later" else DONE

    recorded, bench = RecordedReconciles(reconcile), Bench()
    async with running(controller_of(recorded, observer=bench)) as controller:
        for key in ("good", "later", "bad"):
            controller.enqueue(key)
        await recorded.clock.advance(1)
        assert bench.running == 1
        await recorded.clock.advance(20)
    assert bench.ends == [(SUCCESS, 2), (REQUEUE_AFTER, 2), (ERROR, 2), (SUCCESS, pytest.approx(2))]
    assert bench.running == 0


async def test_stopping_finishes_running_reconciles_and_starts_no_others() -> None:
    finished: list[str] = []

    async def reconcile(key: str) -> Result:
        await recorded.clock.sleep(5)
        finished.append(key)
        return Result(requeue_after=1)

    recorded = RecordedReconciles(reconcile)
    controller = controller_of(recorded, workers=2)
    run = asyncio.create_task(controller.run())
    for key in "abc":
        controller.enqueue(key)
    controller.enqueue_after("d", 6)
    await recorded.clock.advance(1)
    stop = asyncio.create_task(controller.stop(30))
    await recorded.clock.advance(3)
    assert not stop.done()
    controller.enqueue("late")
    await recorded.clock.advance(1)
    await stop
    await run
    assert finished == ["a", "b"]
    await recorded.clock.advance(60)
    assert recorded.keys == ["a", "b"]
    assert recorded.clock.sleepers == 0


async def test_reconciles_past_the_stop_timeout_are_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    ends: list[str] = []

    async def reconcile(key: str) -> Result:
        try:
            await recorded.clock.sleep(1000)
        except asyncio.CancelledError:
            ends.append(key)
            raise
        return DONE

    recorded, bench = RecordedReconciles(reconcile), Bench()
    controller = controller_of(recorded, workers=3, observer=bench)
    run = asyncio.create_task(controller.run())
    controller.enqueue("a")
    controller.enqueue("b")
    await recorded.clock.settle()
    stop = asyncio.create_task(controller.stop(30))
    await recorded.clock.advance(29)
    assert ends == []
    await recorded.clock.advance(1)
    await stop
    await run
    assert ends == ["a", "b"]
    assert caplog.messages == ["claim: 2 reconciles did not finish within 30 s; cancelling them"]
    assert (bench.running, controller.queue.processing, controller.failures) == (0, 0, 0)


async def test_stopping_an_idle_controller_takes_no_time() -> None:
    recorded = RecordedReconciles()
    controller = controller_of(recorded, workers=3)
    run = asyncio.create_task(controller.run())
    await recorded.clock.settle()
    await controller.stop(30)
    await run
    assert recorded.clock.monotonic() == 0


async def test_controller_stopped_before_it_ran_does_nothing() -> None:
    recorded = RecordedReconciles()
    controller = controller_of(recorded)
    controller.enqueue("a")
    controller.enqueue_after("b", 1)
    await controller.stop(30)
    await controller.run()
    await recorded.clock.advance(10)
    assert recorded.log == []


async def test_cancelled_controller_cancels_its_reconciles_and_leaves_no_task() -> None:
    async def reconcile(key: str) -> Result:
        await recorded.clock.sleep(1000)
        return DONE

    recorded = RecordedReconciles(reconcile)
    before = asyncio.all_tasks()
    async with running(controller_of(recorded, workers=3)) as controller:
        controller.enqueue("a")
        controller.enqueue_after("b", 100)
        await recorded.clock.advance(1)
        assert controller.queue.processing == 1
    await recorded.clock.settle()
    assert controller.queue.processing == 0
    assert asyncio.all_tasks() == before
    assert recorded.clock.sleepers == 0


async def test_r24_initial_backlog_waits_for_new_keys() -> None:
    recorded = RecordedReconciles()
    controller = controller_of(recorded)
    for number in range(3):
        controller.enqueue(f"old-{number}")
    controller.enqueue("waiting", DEFAULT_PRIORITY)
    async with running(controller):
        await recorded.clock.settle()
    assert recorded.keys == ["waiting", "old-0", "old-1", "old-2"]

    async def reconcile(key: str) -> Result:
        if key == "old-0":
            controller.enqueue("new")
        return DONE

    recorded = RecordedReconciles(reconcile)
    controller = controller_of(recorded)
    for number in range(3):
        controller.enqueue(f"old-{number}")
    async with running(controller):
        await recorded.clock.settle()
    assert recorded.keys == ["old-0", "new", "old-1", "old-2"]


@pytest.mark.parametrize("fails", [True, False])
async def test_requeued_backlog_key_gets_the_default_priority(fails: bool) -> None:
    async def reconcile(key: str) -> Result:
        await recorded.clock.sleep(1)
        if len(recorded.log) > 1:
            return DONE
        if fails:
            raise Conflict("not now")
        return Result(requeue_after=0.5)

    recorded = RecordedReconciles(reconcile)
    controller = controller_of(recorded)
    for key in ("again", "a", "b"):
        controller.enqueue(key)
    async with running(controller):
        await recorded.clock.advance(10)
    assert recorded.keys == ["again", "a", "again", "b"]


async def test_incomplete_reconcile_waits_as_long_as_retry_after_says() -> None:
    async def reconcile(key: str) -> Result:
        raise ReconcileIncomplete("too many requests", retry_after=7.0)

    recorded = RecordedReconciles(reconcile)
    async with running(controller_of(recorded)) as controller:
        controller.enqueue("a")
        await recorded.clock.advance(10.0)
    assert recorded.times == [0.0, 7.0]
