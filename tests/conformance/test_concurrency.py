"""Many writers at once: exactly one wins where only one can, and nothing is lost."""

from __future__ import annotations

import asyncio

from sandpool.api.kinds import CONFIG_MAP, LEASE, SECRET
from sandpool.api.resource import ResourceType, SharedObject
from sandpool.kube.client import ApplyPatch, Client, JsonPatch, MergePatch
from sandpool.kube.errors import AlreadyExists, ApiError, Conflict, Invalid, NotFound
from sandpool.testing.objects import new
from sandpool.testing.waiting import take
from tests.support.extra_verbs import replace


async def test_concurrent_creates_of_one_name_succeed_once(client: Client, namespace: str) -> None:
    async def create(number: int) -> str:
        try:
            created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={"n": str(number)}), namespace)
        except AlreadyExists:
            return ""
        winner: str = created["data"]["n"]
        return winner

    winners = [each for each in await asyncio.gather(*map(create, range(50))) if each]
    assert len(winners) == 1
    assert (await client.get(CONFIG_MAP, "a", namespace))["data"] == {"n": winners[0]}


async def test_generated_names_differ(client: Client, namespace: str) -> None:
    made = await asyncio.gather(
        *(client.create(SECRET, new(SECRET, None, metadata={"generateName": "s-"}), namespace) for _ in range(50))
    )
    assert len({each["metadata"]["name"] for each in made}) == 50
    assert len({each["metadata"]["resourceVersion"] for each in made}) == 50


async def test_updates_with_a_resource_version_lose_no_increment(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={"n": "0"}), namespace)

    async def increment() -> None:
        while True:
            current = await client.get(CONFIG_MAP, "a", namespace)
            changed = {**current, "data": {"n": str(int(current["data"]["n"]) + 1)}}
            try:
                await replace(client, CONFIG_MAP, changed, namespace)
            except Conflict:
                continue
            return

    async def increment_often(times: int) -> None:
        for _ in range(times):
            await increment()

    await asyncio.gather(*(increment_often(10) for _ in range(5)))
    assert (await client.get(CONFIG_MAP, "a", namespace))["data"] == {"n": "50"}


async def test_json_patches_with_a_test_lose_no_increment(
    client: Client, namespace: str, gadgets: ResourceType
) -> None:
    await client.create(gadgets, new(gadgets, "a", spec={"n": 0}), namespace)

    async def increment() -> None:
        while True:
            n = (await client.get(gadgets, "a", namespace))["spec"]["n"]
            operations = [
                {"op": "test", "path": "/spec/n", "value": n},
                {"op": "replace", "path": "/spec/n", "value": n + 1},
            ]
            try:
                await client.patch(gadgets, "a", JsonPatch(operations), namespace)
            except (Conflict, Invalid):
                continue
            return

    await asyncio.gather(*(increment() for _ in range(20)))
    assert (await client.get(gadgets, "a", namespace))["spec"]["n"] == 20


async def test_patches_of_different_fields_do_not_conflict(
    client: Client, namespace: str, gadgets: ResourceType
) -> None:
    """The server itself tries again when a patch without a version meets another write."""
    await client.create(gadgets, new(gadgets, "a", spec={}), namespace)
    await asyncio.gather(
        *(client.patch(gadgets, "a", MergePatch({"spec": {f"k{n}": n}}), namespace) for n in range(4)),
        *(
            client.patch(gadgets, "a", MergePatch({"status": {f"k{n}": n}}), namespace, subresource="status")
            for n in range(4)
        ),
    )
    final = await client.get(gadgets, "a", namespace)
    assert final["spec"] == final["status"] == {f"k{n}": n for n in range(4)}


async def test_patch_with_a_resource_version_succeeds_once(client: Client, namespace: str) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    version = created["metadata"]["resourceVersion"]

    async def claim(number: int) -> bool:
        patch = MergePatch({"metadata": {"resourceVersion": version}, "data": {"owner": str(number)}})
        try:
            await client.patch(CONFIG_MAP, "a", patch, namespace)
        except Conflict:
            return False
        return True

    assert sum(await asyncio.gather(*map(claim, range(50)))) == 1


async def test_concurrent_applies_create_once(client: Client, namespace: str) -> None:
    async def apply(number: int) -> SharedObject:
        wanted = ApplyPatch(new(CONFIG_MAP, "a", data={f"k{number}": str(number)}))
        while True:
            try:
                return await client.patch(CONFIG_MAP, "a", wanted, namespace, field_manager=f"m{number}")
            except (AlreadyExists, Conflict):
                continue

    made = await asyncio.gather(*map(apply, range(5)))
    assert len({each["metadata"]["uid"] for each in made}) == 1
    assert (await client.get(CONFIG_MAP, "a", namespace))["data"] == {f"k{n}": str(n) for n in range(5)}


async def test_concurrent_deletes_succeed_once(client: Client, namespace: str) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)

    async def delete() -> bool:
        try:
            await client.delete(CONFIG_MAP, "a", namespace, uid=created["metadata"]["uid"])
        except (NotFound, Conflict):
            return False
        return True

    assert sum(await asyncio.gather(*(delete() for _ in range(20)))) == 1


async def test_watch_sees_every_version_in_order(client: Client, namespace: str) -> None:
    start = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={}), namespace)

    async def write(number: int) -> str:
        while True:
            try:
                patch = MergePatch({"data": {"n": str(number)}})
                patched = await client.patch(CONFIG_MAP, "a", patch, namespace)
            except Conflict:
                continue
            version: str = patched["metadata"]["resourceVersion"]
            return version

    watch = client.watch(CONFIG_MAP, namespace, resource_version=start["metadata"]["resourceVersion"])
    versions, events = await asyncio.gather(
        asyncio.gather(*map(write, range(30))),
        take(watch, 30),
    )
    seen = [event.object["metadata"]["resourceVersion"] for event in events]
    assert sorted(versions, key=int) == seen


async def test_list_and_its_watch_miss_nothing(client: Client, namespace: str) -> None:
    """Whenever the list is taken, list and watch together show each of the objects exactly once."""

    async def create(number: int) -> None:
        await client.create(SECRET, new(SECRET, f"s{number}"), namespace)

    writing = asyncio.gather(*map(create, range(30)))
    listed = await client.list(SECRET, namespace)
    names = [item["metadata"]["name"] for item in listed["items"]]
    rest = client.watch(SECRET, namespace, resource_version=listed["metadata"]["resourceVersion"])
    names += (
        [event.object["metadata"]["name"] for event in await take(rest, 30 - len(names))] if len(names) < 30 else []
    )
    await writing
    assert sorted(names) == sorted(f"s{number}" for number in range(30))


async def test_lease_has_one_holder(client: Client, namespace: str) -> None:
    """Leader election: create, or update with the version that was read."""

    async def elect(me: str) -> bool:
        spec = {"holderIdentity": me, "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000000Z"}
        try:
            await client.create(LEASE, new(LEASE, "leader", spec=spec), namespace)
        except AlreadyExists:
            return False
        return True

    assert sum(await asyncio.gather(*(elect(f"candidate-{n}") for n in range(10)))) == 1
    current = await client.get(LEASE, "leader", namespace)

    async def take_over(me: str) -> bool:
        changed = {**current, "spec": {**current["spec"], "holderIdentity": me, "leaseTransitions": 1}}
        try:
            await replace(client, LEASE, changed, namespace)
        except ApiError:
            return False
        return True

    assert sum(await asyncio.gather(*(take_over(f"candidate-{n}") for n in range(10)))) == 1


async def test_lease_is_renewed_by_an_update(client: Client, namespace: str) -> None:
    spec = {"holderIdentity": "me", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000000Z"}
    await client.create(LEASE, new(LEASE, "l", spec=spec), namespace)
    renewed = MergePatch({"spec": {"renewTime": "2026-01-01T00:00:10.123456Z"}})
    patched = await client.patch(LEASE, "l", renewed, namespace)
    assert patched["spec"] == {**spec, "renewTime": "2026-01-01T00:00:10.123456Z"}
    assert "generation" not in patched["metadata"]
