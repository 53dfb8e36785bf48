"""What the controllers do only now and then is granted to them as well, wherever they live."""

from __future__ import annotations

import pytest

from sandpool.api.events import claim_expired
from sandpool.api.kinds import EVENT, NETWORK_POLICY, PERSISTENT_VOLUME_CLAIM, SERVICE
from sandpool.api.names import network_policy_name
from sandpool.api.resource import Object, ResourceType
from sandpool.engine.events import ObjectReference
from sandpool.testing.objects import new
from sandpool.testing.world import World
from tests.support.held_events import hold_events

STORAGE: Object = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}


@pytest.mark.parametrize(
    ("type", "name", "spec"),
    [
        (SERVICE, "box", {"ports": [{"port": 80}]}),
        (PERSISTENT_VOLUME_CLAIM, "work-box", STORAGE),
        (NETWORK_POLICY, network_policy_name("python"), {"podSelector": {}}),
    ],
    ids=str,
)
async def test_object_missing_from_the_cache_is_read(world: World, type: ResourceType, name: str, spec: Object) -> None:
    """Another client created it a moment ago, and the watch event is late."""
    release = hold_events(world, type)
    await world.backend.client_for("users").create(type, new(type, name, spec=spec), world.namespace)
    await world.template()
    volumes = [{"metadata": {"name": "work"}, "spec": STORAGE}]
    await world.sandbox(service=True, volumeClaimTemplates=volumes)
    release()
    assert f"get {type.plural}" in {str(each) for each in world.audited_requests()}
    assert 403 not in {each.code for each in world.audited_requests()}


async def test_repeated_event_is_counted(world: World) -> None:
    about = ObjectReference.to(await world.sandbox())
    for _ in range(2):
        world.controllers.recorder.event(about, claim_expired())
        await world.wait(60)
    (event,) = [each for each in await world.events("box") if each["reason"] == claim_expired().reason]
    assert event["series"]["count"] == 2
    assert f"patch {EVENT.plural}" in {str(each) for each in world.audited_requests()}
