"""Expiry of a sandbox with both shutdown policies."""

from __future__ import annotations

from datetime import timedelta

from sandpool.api.conditions import is_ready
from sandpool.api.kinds import CONFIG_MAP, PERSISTENT_VOLUME_CLAIM, POD, SANDBOX, SERVICE
from sandpool.api.resource import Object
from sandpool.engine.clock import timestamp
from sandpool.kube.transport import Request
from sandpool.node.simulated import Fate
from sandpool.testing.world import World
from tests.support.api_objects import owner_reference

EXPIRED = ("False", "SandboxExpired", "Sandbox has expired")
CLAIM: Object = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}


def after(world: World, seconds: float) -> str:
    """A time as the API writes it, in whole seconds: up to a second before what was asked for."""
    return timestamp(world.clock.now() + timedelta(seconds=seconds))


async def test_expired_sandbox_is_retained_without_pod_and_service(world: World) -> None:
    """The status is written before the deletions, volumes are kept, only conditions remain, and nothing is written
    afterwards."""
    volumes = [{"metadata": {"name": "data"}, "spec": CLAIM}]
    await world.sandbox(service=True, shutdownTime=after(world, 60), volumeClaimTemplates=volumes)
    await world.wait(58)
    assert is_ready(await world.get())
    world.written()
    await world.wait(4)
    assert world.written() == [
        "patch sandboxes/status",
        "delete pods",
        "delete services",
        "patch sandboxes/status",
    ]
    assert await world.conditions() == {
        "Suspended": ("False", "NotSuspended", "Sandbox is not suspended"),
        "Ready": EXPIRED,
    }
    assert (await world.get())["status"].keys() == {"conditions"}
    assert not await world.exists(POD)
    assert not await world.exists(SERVICE)
    assert await world.exists(PERSISTENT_VOLUME_CLAIM, "data-box")
    assert (await world.get())["spec"]["shutdownPolicy"] == "Retain"
    await world.wait(3600)
    assert world.written() == []


async def test_expired_sandbox_is_deleted_with_policy_delete(world: World) -> None:
    await world.sandbox(shutdownTime=after(world, 60), shutdownPolicy="Delete")
    world.written()
    await world.wait(62)
    assert world.written() == ["patch sandboxes/status", "delete pods", "delete sandboxes"]
    assert not await world.exists(SANDBOX)


async def test_sandbox_created_expired_never_has_a_pod(world: World) -> None:
    await world.sandbox(shutdownTime=after(world, -5))
    await world.wait(1)
    assert (await world.conditions())["Ready"] == EXPIRED
    assert world.written() == ["patch sandboxes/status"]


async def test_extended_shutdown_time_restores_an_expired_sandbox(world: World) -> None:
    await world.sandbox(shutdownTime=after(world, 60), service=True)
    await world.wait(62)
    assert (await world.conditions())["Ready"] == EXPIRED
    await world.patch(SANDBOX, "box", {"spec": {"shutdownTime": after(world, 60)}})
    assert (await world.conditions())["Ready"] == ("True", "DependenciesReady", "Pod is Ready; Service Exists")
    await world.wait(62)
    assert (await world.conditions())["Ready"] == EXPIRED


async def test_postponed_shutdown_time_does_not_expire(world: World) -> None:
    await world.sandbox(shutdownTime=after(world, 60))
    await world.patch(SANDBOX, "box", {"spec": {"shutdownTime": after(world, 600)}})
    await world.wait(100)
    assert is_ready(await world.get())


async def test_policy_changed_after_expiry_is_followed(world: World) -> None:
    await world.sandbox(shutdownTime=after(world, 10))
    await world.wait(12)
    await world.patch(SANDBOX, "box", {"spec": {"shutdownPolicy": "Delete"}})
    assert not await world.exists(SANDBOX)


async def test_expiry_wins_over_suspension(world: World) -> None:
    """The Suspended condition stays."""
    await world.sandbox(shutdownTime=after(world, 60), operatingMode="Suspended")
    await world.wait(62)
    assert await world.conditions() == {
        "Suspended": ("True", "PodTerminated", "Pod has been terminated. Sandbox is suspended"),
        "Ready": EXPIRED,
    }


async def test_finished_is_kept_after_expiry(world: World) -> None:
    world.node.fate = lambda pod: Fate.SUCCEEDED
    await world.sandbox(shutdownTime=after(world, 60))
    await world.wait(62)
    assert (await world.conditions())["Finished"] == ("True", "PodSucceeded", "Pod completed successfully")


async def test_foreign_service_survives_expiry(world: World) -> None:
    owner = await world.create(CONFIG_MAP, "another")
    references = [owner_reference(owner, controller=True)]
    spec = {"clusterIP": "None", "selector": {"app": "x"}}
    await world.create(SERVICE, "box", metadata={"ownerReferences": references}, spec=spec)
    await world.sandbox(shutdownTime=after(world, 60), service=False)
    await world.wait(62)
    assert (await world.conditions())["Ready"] == EXPIRED
    assert await world.exists(SERVICE)


async def test_failed_pod_deletion_keeps_the_status_and_is_retried(world: World) -> None:
    await world.sandbox(shutdownTime=after(world, 60))
    world.wire.fault = lambda request: ConnectionError("no route") if _deletes(request, "/pods/box") else None
    await world.wait(62)
    assert (await world.conditions())["Ready"] == EXPIRED
    assert (await world.get())["status"]["podIPs"]
    world.wire.heal()
    await world.wait(20)
    assert not await world.exists(POD)
    assert (await world.get())["status"].keys() == {"conditions"}


async def test_sandbox_with_policy_delete_is_deleted_despite_a_failed_pod_deletion(world: World) -> None:
    """Its children go with it, so their failure is no reason to stay."""
    await world.sandbox(shutdownTime=after(world, 60), shutdownPolicy="Delete")
    world.wire.fault = lambda request: ConnectionError("no route") if _deletes(request, "/pods/box") else None
    await world.wait(62)
    assert not await world.exists(SANDBOX)
    await world.gone(POD)


async def test_successor_controller_continues_an_interrupted_expiry(world: World) -> None:
    await world.sandbox(shutdownTime=after(world, 60))
    world.wire.fault = lambda request: ConnectionError("no route") if request.method == "DELETE" else None
    await world.wait(62)
    assert await world.exists(POD)
    world.wire.heal()
    await world.restart()
    await world.settle()
    assert not await world.exists(POD)
    assert (await world.get())["status"].keys() == {"conditions"}


def _deletes(request: Request, path: str) -> bool:
    return request.method == "DELETE" and request.path.endswith(path)
