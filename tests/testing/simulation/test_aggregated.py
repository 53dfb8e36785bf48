"""Simulated worlds with an aggregated API: what a crash of its process takes along, and what clients see of that."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from sandpool.api.kinds import POD, SANDBOX, SANDBOX_CLAIM, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.api.resource import Key
from sandpool.kube.errors import ApiError
from sandpool.testing.simulation.aggregated import AggregatedApi
from sandpool.testing.simulation.crash import Crash, CrashPoint, WriteKind
from sandpool.testing.simulation.journal import VolumeJournal
from sandpool.testing.simulation.simulation import Scenario, Simulation
from sandpool.testing.simulation.world import World


def simulate(
    story: Callable[[World, AggregatedApi], Awaitable[None]], *, seed: int = 1, crashes: tuple[Crash, ...] = ()
) -> Simulation:
    async def run(world: World) -> None:
        assert isinstance(world.simulation.api, AggregatedApi)
        await story(world, world.simulation.api)

    simulation = Simulation(seed, Scenario(story=run, aggregated=True, crashes=crashes))
    simulation.run().check(replay="")
    return simulation


async def filled(world: World) -> None:
    await world.template()
    await world.pool(replicas=2)
    await world.filled()


def test_each_kind_is_in_its_api() -> None:
    async def story(world: World, api: AggregatedApi) -> None:
        await filled(world)
        ours, other = api.kinds.store, api.store.kube
        assert [ours.count(type.group_resource) for type in (SANDBOX, SANDBOX_WARM_POOL, POD)] == [2, 1, 0]
        assert [other.count(type.group_resource) for type in (SANDBOX, SANDBOX_WARM_POOL, POD)] == [0, 0, 2]

    simulate(story)


def test_own_writes_of_a_killed_process_end_with_it() -> None:
    """An adoption that is not sent yet is never made: there is no network that would deliver it."""

    async def story(world: World, api: AggregatedApi) -> None:
        await filled(world)
        await world.claim("c")
        await world.ready(SANDBOX_CLAIM, "c")

    simulation = simulate(story, crashes=(Crash(1, CrashPoint.BEFORE, WriteKind.ADOPTION),))
    assert len(simulation.processes) == 2
    assert simulation.invariants.adoptions == 1
    assert not simulation.invariants.late_adoptions


@pytest.mark.parametrize("seed", range(6))
def test_clients_wait_while_the_api_is_away_and_nothing_is_lost(seed: int) -> None:
    async def story(world: World, api: AggregatedApi) -> None:
        await filled(world)
        pods = {entry.uid for entry in api.store.scan(POD.group_resource)}
        world.kill_controllers()
        assert not api.kinds.serving.is_set()
        with suppress(ApiError):  # it exists if the first attempt was committed
            await world.claim("c")
        assert len(world.simulation.processes) == 2, "the claim is answered by the next process"
        assert pods <= {entry.uid for entry in api.store.scan(POD.group_resource)}

    simulate(story, seed=seed)


@pytest.mark.parametrize("is_committed", [False, True])
def test_batch_at_a_crash_is_visible_only_if_it_is_on_the_volume(is_committed: bool) -> None:
    async def story(world: World, api: AggregatedApi) -> None:
        await filled(world)
        kinds, key = api.kinds, Key(world.namespace, "late")
        seen: list[str] = []
        kinds.add_observer(lambda resource, change, writer: seen.append(change.entry.key.name))
        kinds._journal.delay = lambda: 100.0
        sending = asyncio.create_task(world.template("late"))
        await asyncio.sleep(1.0)
        assert kinds._journal._committing is not None
        crash = kinds._journal.crash
        kinds._journal.crash = lambda **_: crash(is_committed=is_committed)  # type: ignore[method-assign]
        world.kill_controllers()
        kinds._journal.delay = kinds.delay
        assert (kinds.store.get(SANDBOX_TEMPLATE.group_resource, key) is not None) == is_committed
        await asyncio.sleep(0.0001)
        assert ("late" in seen) == is_committed
        if is_committed:
            with pytest.raises(ApiError, match="already exists"):
                await sending
        else:
            await sending

    simulate(story)


def test_collector_of_the_cluster_deletes_the_pod_of_a_deleted_sandbox_late() -> None:
    async def story(world: World, api: AggregatedApi) -> None:
        await filled(world)
        api.collector._lag = lambda: 5.0
        sandbox = next(iter(api.store.scan(SANDBOX.group_resource)))
        await world.client.delete(SANDBOX, sandbox.key.name, world.namespace)
        await asyncio.sleep(4.0)
        pod = api.store.kube.get(POD.group_resource, sandbox.key)
        assert pod is not None
        assert "deletionTimestamp" not in pod.decode()["metadata"]
        await asyncio.sleep(30.0)
        assert api.store.kube.get(POD.group_resource, sandbox.key) is None

    simulate(story)


def test_journal_takes_nothing_after_a_crash() -> None:
    journal = VolumeJournal(lambda: 0.0)
    after = journal.crash(is_committed=False)
    journal.commit(None, lambda error: pytest.fail("a batch was committed"))  # type: ignore[arg-type]
    assert (after.rows, after.revision) == (0, 0)
