"""The NetworkPolicy that earlier versions created for claims."""

from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.kinds import NETWORK_POLICY
from sandpool.api.resource import Object
from sandpool.api.views import ClaimView, NetworkPolicyView
from sandpool.controllers.claim.controller import legacy_policy_deletion
from sandpool.controllers.writer import Delete
from sandpool.kube.errors import NotFound
from sandpool.kube.transport import Request
from sandpool.testing.faulty_transport import Fault
from sandpool.testing.objects import new
from sandpool.testing.waiting import until
from sandpool.testing.world import NAMESPACE, World
from tests.support.api_objects import owner_reference
from tests.support.claim_objects import claim
from tests.support.sandbox_objects import stored

NAME = "claim-network-policy"
GOING = {"deletionTimestamp": "2026-11-01T12:00:00Z"}


def policy(owner: Object | None = None, **metadata: Any) -> NetworkPolicyView:
    return NetworkPolicyView.from_object(stored(NETWORK_POLICY, NAME, owner=owner, spec={}, metadata=metadata))


def test_legacy_policy_of_the_claim_is_deleted() -> None:
    mine = ClaimView.from_object(claim())
    assert legacy_policy_deletion(mine, policy(claim())) == Delete(NETWORK_POLICY, NAME, f"networkpolicy-{NAME}")


@pytest.mark.parametrize("found", [None, policy(), policy(claim("other")), policy(claim(), **GOING)])
def test_other_network_policies_are_kept(found: NetworkPolicyView | None) -> None:
    assert legacy_policy_deletion(ClaimView.from_object(claim()), found) is None


@pytest.mark.parametrize("is_refused", [False, True])
async def test_legacy_policy_is_deleted_while_the_claim_waits(world: World, is_refused: bool) -> None:
    await world.template()
    await world.pool(1)
    owner = await world.claim("mine", warmPoolRef={"name": "none-yet"})
    reference = owner_reference(owner, controller=True)
    body = new(
        NETWORK_POLICY, "mine-network-policy", metadata={"ownerReferences": [reference]}, spec={"podSelector": {}}
    )
    await world.client.create(NETWORK_POLICY, body, NAMESPACE)
    await world.eventually(lambda: any(each.name == body["metadata"]["name"] for each in policies(world)))

    asked: list[Request] = []

    def refuse(request: Request) -> Fault | None:
        if request.method == "DELETE" and request.path.endswith("/mine-network-policy"):
            asked.append(request)
            return Fault.CUT if is_refused else None
        return None

    world.wire.fault = refuse
    await world.pool(1, name="none-yet", filled=False)
    await world.served(1)

    async def gone() -> bool:
        try:
            await world.client.get(NETWORK_POLICY, "mine-network-policy", NAMESPACE)
        except NotFound:
            return True
        return False

    assert asked
    if not is_refused:
        await until(gone)


def policies(world: World) -> list[NetworkPolicyView]:
    return list(world.controllers.caches.network_policies)


async def test_claim_without_legacy_policy_costs_no_request(world: World) -> None:
    await world.template()
    await world.pool(1)
    await world.claim("mine")
    await world.served(1)
    asked = [each for each in world.wire.requests if "mine-network-policy" in each.path]
    assert asked == []
