"""Indexes of the shared caches, and their reflectors on an API."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

from sandpool.api.kinds import POD, SANDBOX, SANDBOX_CLAIM, SANDBOX_WARM_POOL
from sandpool.api.labels import POD_NAME, WARM_POOL
from sandpool.api.names import name_hash
from sandpool.api.resource import Key
from sandpool.controllers.informers import Caches, InformerSet, key_of
from sandpool.engine.clock import SystemClock
from sandpool.server.api_server import ApiServer
from sandpool.testing.objects import new, pod_template
from tests.support.sandbox_objects import sandbox, sandbox_pod, stored


def test_sandboxes_are_found_by_owner_and_pool() -> None:
    caches = Caches()
    pool = stored(SANDBOX_WARM_POOL, "warm")
    labels = {WARM_POOL: name_hash("warm")}
    caches.sandboxes.observe(sandbox("member", owner=pool, metadata={"labels": labels}))
    caches.sandboxes.observe(sandbox("orphan", metadata={"labels": labels}))
    caches.sandboxes.observe(sandbox("elsewhere", metadata={"labels": labels, "namespace": "other"}))
    caches.sandboxes.observe(sandbox("plain"))

    assert [each.name for each in caches.owned_sandboxes(pool["metadata"]["uid"])] == ["member"]
    assert {each.name for each in caches.pool_sandboxes("default", "warm")} == {"member", "orphan"}


def test_pods_are_found_by_owner() -> None:
    caches = Caches()
    box = sandbox("box")
    caches.sandboxes.observe(box)
    caches.pods.observe(sandbox_pod(box))
    view = caches.sandboxes.get(Key("default", "box"))
    assert view is not None
    pods = caches.owned_pods(view.uid)

    assert [key_of(each) for each in pods] == [Key("default", "box")]
    assert caches.pod_of(view) is pods[0]

    caches.pods.observe(sandbox_pod(box, "second"))
    assert caches.pod_of(view) is None, "two pods are ambiguous"


def test_sandboxes_are_found_by_a_pod_that_they_name() -> None:
    caches = Caches()
    caches.sandboxes.observe(sandbox("box", metadata={"annotations": {POD_NAME: "prepared"}}))
    caches.sandboxes.observe(sandbox("plain", metadata={"annotations": {POD_NAME: "plain"}}))
    assert [each.name for each in caches.sandboxes_naming("default", "prepared")] == ["box"]
    assert not caches.sandboxes_naming("default", "plain"), "that is found by its own name"


def test_claims_are_found_by_pool_and_pools_by_template() -> None:
    caches = Caches()
    caches.claims.observe(stored(SANDBOX_CLAIM, "mine", spec={"warmPoolRef": {"name": "warm"}}))
    caches.pools.observe(stored(SANDBOX_WARM_POOL, "warm", spec={"sandboxTemplateRef": {"name": "python"}}))

    assert [each.name for each in caches.pool_claims("default", "warm")] == ["mine"]
    assert [each.name for each in caches.template_pools("default", "python")] == ["warm"]
    assert not caches.pool_claims("default", "cold")


async def test_caches_reflect_existing_and_new_objects(tmp_path: Path) -> None:
    server = ApiServer(tmp_path)
    await server.start()
    client = server.client()
    caches = Caches()
    informers = InformerSet(caches, client, SystemClock(), Random(0))
    await client.create(SANDBOX, new(SANDBOX, "there", spec={"podTemplate": pod_template()}), "default")
    task = asyncio.create_task(informers.run())
    try:
        async with asyncio.timeout(20):
            await informers.synced()
            assert Key("default", "there") in caches.sandboxes

            come = asyncio.Event()
            caches.pods.subscribe(lambda key, old, new: come.set())
            pod = new(POD, "comes", spec=pod_template()["spec"])
            await client.create(POD, pod, "default")
            await come.wait()
            assert Key("default", "comes") in caches[POD]
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await server.stop()
