"""Edge cases of templates and API versions, by their numbers in docs/compatibility.md, on every backend."""

from __future__ import annotations

import pytest

from sandpool.api.kinds import (
    AGENTS_GROUP,
    EXTENSIONS_GROUP,
    NETWORK_POLICY,
    SANDBOX,
    SANDBOX_CLAIM,
    SANDBOX_TEMPLATE,
    SANDBOX_WARM_POOL,
)
from sandpool.api.resource import Object, ResourceType
from sandpool.kube.errors import NotFound
from sandpool.kube.transport import Request
from sandpool.testing.world import World
from tests.support.api_objects import owner_reference

POLICY = "python-network-policy"
THEIRS: Object = {"podSelector": {}, "policyTypes": ["Ingress"]}


async def test_edge_54_foreign_policy_of_an_unmanaged_template_survives(world: World) -> None:
    made = await world.create(NETWORK_POLICY, POLICY, spec=THEIRS)
    await world.template(networkPolicyManagement="Unmanaged")
    await world.wait(60)
    assert await world.get(NETWORK_POLICY, POLICY) == made
    assert world.controllers.templates.controller.failures == 0


async def test_edge_54_foreign_policy_of_a_managed_template_is_not_changed(world: World) -> None:
    made = await world.create(NETWORK_POLICY, POLICY, spec=THEIRS)
    await world.template()
    await world.wait(60)
    assert await world.get(NETWORK_POLICY, POLICY) == made
    assert world.controllers.templates.controller.failures > 0


async def test_edge_54_policy_owned_but_not_controlled_by_the_template_is_foreign(
    world: World,
) -> None:
    template = await world.template(networkPolicyManagement="Unmanaged")
    made = await world.create(
        NETWORK_POLICY, POLICY, metadata={"ownerReferences": [owner_reference(template)]}, spec=THEIRS
    )
    await world.patch(SANDBOX_TEMPLATE, "python", {"spec": {"networkPolicyManagement": "Managed"}})
    await world.wait(60)
    assert await world.get(NETWORK_POLICY, POLICY) == made


async def test_edge_54_second_reconcile_changes_nothing(world: World) -> None:
    await world.template()
    before = await world.get(SANDBOX_TEMPLATE, "python")
    policy = await world.get(NETWORK_POLICY, POLICY)
    await world.restart()
    await world.settle()
    assert await world.get(SANDBOX_TEMPLATE, "python") == before
    assert await world.get(NETWORK_POLICY, POLICY) == policy


@pytest.mark.parametrize("type", [SANDBOX, SANDBOX_CLAIM, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL], ids=lambda t: t.kind)
async def test_edge_55_one_version_is_served_and_nothing_is_converted(world: World, type: ResourceType) -> None:
    group = await world.client.transport.request(Request("GET", f"/apis/{type.group}"))
    assert [version["version"] for version in group["versions"]] == ["v1beta1"]
    assert {AGENTS_GROUP, EXTENSIONS_GROUP} >= {type.group}
    path = type.path(world.namespace).replace("/v1beta1/", "/v1alpha1/")
    with pytest.raises(NotFound):
        await world.client.transport.request(Request("GET", path))
