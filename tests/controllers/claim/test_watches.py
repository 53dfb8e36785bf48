"""Priorities of claims, and changes that enqueue them."""

from __future__ import annotations

import asyncio
from random import Random

from sandpool.api.labels import SANDBOX_NAME
from sandpool.api.resource import Key
from sandpool.controllers.claim.state import ClaimStates
from sandpool.controllers.claim.watches import watch_claims
from sandpool.controllers.informers import Caches
from sandpool.controllers.own_writes import OwnWriteFilter
from sandpool.engine.controller import DONE, Controller, Result
from sandpool.testing.clock import ManualClock
from tests.support.claim_objects import claim


async def test_r24_waiting_claims_are_reconciled_before_served_ones_after_a_restart() -> None:
    caches, clock = Caches(), ManualClock()
    reconciled: list[str] = []

    async def look(key: Key) -> Result:
        reconciled.append(key.name)
        if len(reconciled) == 10:
            caches.claims.observe(claim("new", metadata={"resourceVersion": "20000"}))
        return DONE

    def enqueue(key: Key) -> None:
        controller.enqueue(key)

    own_writes = OwnWriteFilter(enqueue, lambda key: False)
    controller: Controller[Key] = Controller("claim", look, clock, Random(0), middleware=[own_writes.middleware])
    watch_claims(caches, ClaimStates(Random(0)), clock, controller.enqueue, own_writes)
    listing = caches.claims.begin_list(10_000)
    for number in range(1000):
        served = {"sandbox": {"name": f"box-{number}"}}
        listing.add(claim(f"served-{number}", status=served, metadata={"resourceVersion": str(number + 1)}))
    listing.add(claim("waiting", metadata={"resourceVersion": "5000"}))
    listing.finish()

    task = asyncio.create_task(controller.run())
    await clock.settle()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert reconciled[0] == "waiting"
    assert reconciled[10] == "new"
    assert len(reconciled) == 1002


async def test_status_written_between_two_reconciles_enqueues_the_claim() -> None:
    """The response to our write was lost, or a predecessor wrote it: only a reconcile corrects it."""
    caches, clock = Caches(), ManualClock()
    reconciled: list[str] = []

    async def look(key: Key) -> Result:
        reconciled.append(key.name)
        if len(reconciled) == 1:  # our own write, and its answer
            caches.claims.record_write(claim(status={"sandbox": {"name": "a"}}, metadata={"resourceVersion": "2"}))
        return DONE

    def enqueue(key: Key) -> None:
        controller.enqueue(key)

    own_writes = OwnWriteFilter(enqueue, lambda key: False)
    controller: Controller[Key] = Controller("claim", look, clock, Random(0), middleware=[own_writes.middleware])
    watch_claims(caches, ClaimStates(Random(0)), clock, controller.enqueue, own_writes)
    task = asyncio.create_task(controller.run())
    caches.claims.observe(claim())
    await clock.settle()
    assert reconciled == ["claim"]

    caches.claims.observe(claim(status={"sandbox": {"name": "b"}}, metadata={"resourceVersion": "3"}))
    await clock.settle()
    assert reconciled == ["claim", "claim"]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_annotation_of_another_sandbox_than_the_status_enqueues_the_claim() -> None:
    """A predecessor wrote it before it died, and it arrived when the claim had been given another sandbox."""
    caches, reconciled = Caches(), list[str]()

    def saw(version: str, note: str) -> None:
        metadata = {"resourceVersion": version, "annotations": {SANDBOX_NAME: note} if note else {}}
        caches.claims.observe(claim(status={"sandbox": {"name": "b"}}, metadata=metadata))

    saw("1", "")
    states, clock = ClaimStates(Random(0)), ManualClock()
    own_writes = OwnWriteFilter(lambda key: reconciled.append(key.name), lambda key: True)
    watch_claims(caches, states, clock, lambda key, priority=None: None, own_writes)
    saw("2", "b")
    assert reconciled == []
    saw("3", "a")
    assert reconciled == ["claim"]
    saw("4", "z")
    assert reconciled == ["claim", "claim"]
    saw("5", "b")
    assert reconciled == ["claim", "claim"]
