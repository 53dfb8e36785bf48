"""Pods fall asleep when they are unused, and no client ever meets a frozen one."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest

from sandpool.api.kinds import POD
from sandpool.api.labels import IDLE_CPU, IDLE_FREEZE_AFTER, WARM_POOL
from sandpool.api.resource import Key
from sandpool.kube.client import MergePatch
from sandpool.kube.pod_access import PodAccessError
from sandpool.node.sleep.policy import MAX_INTERVAL

if TYPE_CHECKING:
    from tests.node.sleep.conftest import SleepRig

FREEZE = {IDLE_FREEZE_AFTER: "1m"}


async def test_unused_pod_is_frozen_without_an_api_write(sleepy: SleepRig) -> None:
    await sleepy.create(FREEZE)
    await sleepy.node.passes(30)
    writes = len(sleepy.node.status_writes())
    assert not sleepy.container().paused
    await sleepy.node.passes(31)
    assert sleepy.container().paused
    assert (await sleepy.node.conditions())["Ready"] == "True"
    assert len(sleepy.node.status_writes()) == writes


async def test_pod_that_stays_frozen_is_reported_and_costs_a_request_nothing(sleepy: SleepRig) -> None:
    """Neither the freeze nor the thaw waits for a write, and a short sleep costs none."""
    await sleepy.create(FREEZE)
    await sleepy.node.passes(61)
    writes = len(sleepy.node.status_writes())
    await sleepy.end_exec(await sleepy.begin_exec())
    await sleepy.node.passes(30)
    assert "sandpool.dev/Frozen" not in await sleepy.node.conditions()
    assert len(sleepy.node.status_writes()) == writes
    await sleepy.node.passes(60)
    assert (await sleepy.node.conditions())["sandpool.dev/Frozen"] == "True"
    assert len(sleepy.node.status_writes()) == writes + 1
    await sleepy.end_exec(await sleepy.begin_exec())
    assert len(sleepy.node.status_writes()) == writes + 1
    await sleepy.node.passes(30)
    assert (await sleepy.node.conditions())["sandpool.dev/Frozen"] == "False"
    assert len(sleepy.node.status_writes()) == writes + 2


async def test_pod_that_did_not_opt_in_stays_awake(sleepy: SleepRig) -> None:
    await sleepy.create({})
    await sleepy.node.passes(10_000)
    assert not sleepy.container().paused
    assert sleepy.router.asked == []


async def test_nothing_is_frozen_where_clients_do_not_pass_through_the_node(sleepy: SleepRig) -> None:
    sleepy.node.settings = replace(sleepy.node.settings, freezes=False)
    await sleepy.node.restart()
    sleepy.use(sleepy.node)
    await sleepy.create(FREEZE)
    await sleepy.node.passes(600)
    assert not sleepy.container().paused


async def test_member_of_a_warm_pool_stays_awake_until_it_is_claimed(sleepy: SleepRig) -> None:
    await sleepy.create(FREEZE, labels={WARM_POOL: "abc"})
    await sleepy.node.passes(600)
    assert not sleepy.container().paused
    await sleepy.node.client.patch(POD, "pod", MergePatch({"metadata": {"labels": {WARM_POOL: None}}}), "default")
    await sleepy.node.passes(50)
    assert not sleepy.container().paused
    await sleepy.node.passes(60)
    assert sleepy.container().paused


async def test_command_thaws_the_pod_and_keeps_it_awake(sleepy: SleepRig) -> None:
    await sleepy.create(FREEZE)
    await sleepy.node.passes(70)
    assert sleepy.container().paused
    running = await sleepy.begin_exec()
    assert not sleepy.container().paused
    await sleepy.node.passes(1000)
    assert not sleepy.container().paused, "a command runs"
    await sleepy.end_exec(running)
    await sleepy.node.passes(59)
    assert not sleepy.container().paused
    await sleepy.node.passes(2)
    assert sleepy.container().paused


async def test_forwarded_connection_keeps_the_pod_awake_until_it_is_closed(sleepy: SleepRig) -> None:
    await sleepy.create(FREEZE)
    sleepy.node.network.open.add(80)
    connection = await sleepy.access.dial(await sleepy.node.get(), 80, {})
    await sleepy.node.passes(1000)
    assert not sleepy.container().paused
    connection.close()
    await sleepy.node.passes(59)
    assert not sleepy.container().paused
    await sleepy.node.passes(2)
    assert sleepy.container().paused


async def test_attached_client_keeps_the_pod_awake(sleepy: SleepRig) -> None:
    await sleepy.create(FREEZE)
    with sleepy.worker().clients.client():
        await sleepy.node.passes(1000)
        assert not sleepy.container().paused


@pytest.mark.parametrize("jobs", [1, None])
async def test_background_process_or_an_unknown_number_keeps_the_pod_awake(sleepy: SleepRig, jobs: int | None) -> None:
    await sleepy.create(FREEZE)
    assert sleepy.container().was_ready
    sleepy.container().jobs = jobs
    await sleepy.node.passes(1000)
    assert not sleepy.container().paused
    sleepy.container().jobs = 0
    await sleepy.node.passes(60 - MAX_INTERVAL - 1)
    assert not sleepy.container().paused
    await sleepy.node.passes(MAX_INTERVAL + 2)
    assert sleepy.container().paused


async def test_pod_that_uses_the_cpu_stays_awake(sleepy: SleepRig) -> None:
    await sleepy.create({**FREEZE, IDLE_CPU: "100m"})
    for _ in range(100):
        sleepy.container().cpu_seconds += 2.0
        await sleepy.node.passes(10)
    assert not sleepy.container().paused
    for _ in range(8):
        sleepy.container().cpu_seconds += 0.5
        await sleepy.node.passes(10)
    assert sleepy.container().paused


async def test_request_through_the_router_keeps_the_pod_awake(sleepy: SleepRig) -> None:
    worker = await sleepy.create(FREEZE)
    uid = worker.state.pod.uid
    sleepy.router.quiet[uid] = 0.0
    await sleepy.node.passes(600)
    assert not sleepy.container().paused
    sleepy.router.quiet[uid] = 20.0  # the last request ended 20 seconds before the next question
    await sleepy.node.passes(99)
    assert not sleepy.container().paused, "at each question the last request was 20 seconds ago"
    sleepy.router.quiet[uid] = 60.0
    await sleepy.node.passes(41)
    assert sleepy.container().paused


async def test_request_that_waits_for_its_sandbox_keeps_the_pod_awake(sleepy: SleepRig) -> None:
    """A resumed sandbox gets the variables of its claim before the request may reach it."""
    waiting = {Key("default", "pod")}
    sleepy.node.agent.sleep.is_waking = waiting.__contains__
    await sleepy.create(FREEZE)
    await sleepy.node.passes(600)
    assert not sleepy.container().paused
    waiting.clear()
    await sleepy.node.passes(76)
    assert sleepy.container().paused


async def test_router_is_asked_only_about_pods_that_would_fall_asleep(sleepy: SleepRig) -> None:
    worker = await sleepy.create(FREEZE)
    await sleepy.create({**FREEZE, IDLE_FREEZE_AFTER: "1h"}, "later")
    await sleepy.node.passes(600)
    assert sleepy.router.asked == [{worker.state.pod.uid: 60.0}]


@pytest.mark.parametrize("failure", [ConnectionResetError("the process has ended"), ValueError("no JSON")])
async def test_no_pod_sleeps_while_the_router_does_not_answer(sleepy: SleepRig, failure: Exception) -> None:
    await sleepy.create(FREEZE)
    sleepy.router.failure = failure
    await sleepy.node.passes(600)
    assert not sleepy.container().paused
    sleepy.router.failure = None
    await sleepy.node.passes(70)
    assert sleepy.container().paused


async def test_client_that_comes_while_the_router_is_asked_prevents_the_sleep(sleepy: SleepRig) -> None:
    worker = await sleepy.create(FREEZE)
    sleepy.router.on_ask = worker.clients.touch
    await sleepy.node.passes(600)
    assert not sleepy.container().paused
    assert len(sleepy.router.asked) > 1


async def test_client_that_comes_while_the_pod_is_being_frozen_meets_a_running_one(sleepy: SleepRig) -> None:
    worker = await sleepy.create(FREEZE)
    pause, paused, go_on = sleepy.container().pause, asyncio.Event(), asyncio.Event()

    async def slow_pause() -> None:
        await pause()
        paused.set()
        await go_on.wait()

    sleepy.container().pause = slow_pause  # type: ignore[method-assign]
    await sleepy.node.passes(61)
    await paused.wait()
    arriving = asyncio.create_task(worker.ensure_thawed())
    await sleepy.node.settle()
    assert not arriving.done()
    go_on.set()
    await arriving
    assert not sleepy.container().paused


async def test_many_clients_thaw_a_pod_once(sleepy: SleepRig) -> None:
    worker = await sleepy.create(FREEZE)
    await sleepy.node.passes(61)
    resumed = 0
    resume = sleepy.container().resume

    async def counted() -> None:
        nonlocal resumed
        resumed += 1
        await resume()

    sleepy.container().resume = counted  # type: ignore[method-assign]
    await asyncio.gather(*(worker.ensure_thawed() for _ in range(200)))
    assert resumed == 1
    assert not sleepy.container().paused


async def test_frozen_pod_stays_frozen_for_the_next_agent_and_is_thawed_by_it(sleepy: SleepRig) -> None:
    await sleepy.create(FREEZE)
    await sleepy.node.passes(61)
    await sleepy.node.restart()
    sleepy.use(sleepy.node)
    await sleepy.node.passes(600)
    assert sleepy.container().paused
    running = await sleepy.begin_exec()
    assert not sleepy.container().paused
    await sleepy.end_exec(running)


async def test_annotation_can_be_changed_while_the_pod_runs_and_while_it_sleeps(sleepy: SleepRig) -> None:
    await sleepy.create({})
    await sleepy.node.passes(600)
    await _annotate(sleepy, "1m")
    await sleepy.node.passes(71)
    assert sleepy.container().paused
    await _annotate(sleepy, "never")
    await sleepy.node.settle()
    assert not sleepy.container().paused
    await sleepy.node.passes(600)
    assert not sleepy.container().paused


async def _annotate(sleepy: SleepRig, value: str) -> None:
    body = {"metadata": {"annotations": {IDLE_FREEZE_AFTER: value}}}
    await sleepy.node.client.patch(POD, "pod", MergePatch(body), "default")


async def test_sleeping_pod_is_deleted_in_order(sleepy: SleepRig) -> None:
    await sleepy.create(FREEZE)
    await sleepy.node.passes(61)
    container = sleepy.container()
    assert container.paused
    await sleepy.node.delete()
    assert await sleepy.node.gone()
    assert container.signals == [15]


async def test_value_that_cannot_be_read_is_reported_once(sleepy: SleepRig) -> None:
    await sleepy.create({IDLE_FREEZE_AFTER: "soon"})
    await sleepy.node.passes(600)
    events = [note for reason, note in await sleepy.node.events() if reason == "InvalidSleepAnnotation"]
    assert len(events) == 1
    assert '"soon" is not a duration' in events[0]


async def test_command_in_a_container_that_does_not_exist_counts_for_nothing(sleepy: SleepRig) -> None:
    worker = await sleepy.create(FREEZE)
    with pytest.raises(PodAccessError, match="not running"):
        await sleepy.access.execute(await sleepy.node.get(), "none", ("work",), None)  # type: ignore[arg-type]
    assert worker.clients.connected == 0


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 30))])
async def test_random_traffic_never_meets_a_frozen_pod(sleepy: SleepRig, seed: int) -> None:
    """Clients come at random moments, also while the pod is being frozen; commands, connections, jobs and CPU overlap.
    Every command starts at once in a running container, and no pod is frozen while it is used."""
    rng = Random(seed)
    names = [f"pod-{number}" for number in range(3)]
    for name in names:
        await sleepy.create({IDLE_FREEZE_AFTER: rng.choice(["1s", "5s", "1m"])}, name)
    running: dict[str, list[asyncio.Task[int]]] = {name: [] for name in names}
    served = slept = 0
    for _ in range(40):
        name = rng.choice(names)
        container = sleepy.container(name)
        match rng.randrange(5):
            case 0 | 1:
                running[name].append(await sleepy.begin_exec(name))
                served += 1
            case 2 if running[name]:
                container.processes[len(container.processes) - 1].end(0)
                await sleepy.node.settle()
                running[name] = [each for each in running[name] if not each.done()]
            case 3:
                container.jobs = rng.randrange(2) if not container.paused else 0
            case _:
                for process in container.processes:
                    process.end(0)
                await sleepy.node.settle()
                running[name].clear()
        for _ in range(2):
            await sleepy.node.passes(rng.choice([0.1, 1.0, 5.0, 20.0, 60.0]))
            for each in names:
                found, used = (
                    sleepy.container(each),
                    sleepy.worker(each).clients.connected or sleepy.container(each).jobs,
                )
                assert not (found.paused and used), f"{each} is frozen while it is used"
                slept += found.paused
    assert served > 5
    assert slept > 5, "nothing fell asleep, so nothing was tested"
