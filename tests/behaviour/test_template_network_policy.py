"""The NetworkPolicy of a template."""

from __future__ import annotations

import pytest

from sandpool.api.kinds import NETWORK_POLICY, POD, SANDBOX, SANDBOX_CLAIM, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.api.labels import TEMPLATE_REF_HASH
from sandpool.api.names import name_hash
from sandpool.api.resource import Object
from sandpool.testing.world import World
from tests.support.api_objects import owner_reference

POLICY = "python-network-policy"
HASH = name_hash("python")


async def change(world: World, **spec: object) -> None:
    await world.patch(SANDBOX_TEMPLATE, "python", {"spec": spec})


async def policy(world: World) -> Object:
    spec: Object = (await world.get(NETWORK_POLICY, POLICY))["spec"]
    return spec


async def test_template_gets_its_label_and_its_policy(world: World) -> None:
    world.written()
    template = await world.template()
    assert world.written() == ["patch sandboxtemplates", "create networkpolicies"]
    assert (await world.get(SANDBOX_TEMPLATE, "python"))["metadata"]["labels"] == {TEMPLATE_REF_HASH: HASH}
    found = await world.get(NETWORK_POLICY, POLICY)
    assert found["metadata"]["ownerReferences"] == [owner_reference(template, controller=True, block=True)]
    assert "labels" not in found["metadata"]


async def test_default_policy_allows_ingress_from_the_router_and_egress_to_the_internet(world: World) -> None:
    await world.template()
    router = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "agent-sandbox-system"}},
        "podSelector": {"matchLabels": {"app": "sandbox-router"}},
    }
    private = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"]
    assert await policy(world) == {
        "podSelector": {"matchLabels": {TEMPLATE_REF_HASH: HASH}},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [router]}],
        "egress": [
            {
                "to": [
                    {"ipBlock": {"cidr": "0.0.0.0/0", "except": private}},
                    {"ipBlock": {"cidr": "::/0", "except": ["fc00::/7", "fe80::/10"]}},
                ]
            }
        ],
    }


async def test_rules_of_a_template_are_used_unchanged(world: World) -> None:
    """A direction without rules is closed."""
    rule = {"to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}], "ports": [{"port": 443, "protocol": "TCP"}]}
    await world.template(networkPolicy={"egress": [rule]})
    assert await policy(world) == {
        "podSelector": {"matchLabels": {TEMPLATE_REF_HASH: HASH}},
        "policyTypes": ["Ingress", "Egress"],
        "egress": [rule],
    }
    await change(world, networkPolicy={"egress": None})
    assert await policy(world) == {
        "podSelector": {"matchLabels": {TEMPLATE_REF_HASH: HASH}},
        "policyTypes": ["Ingress", "Egress"],
    }


async def test_changed_rules_are_written_once(world: World) -> None:
    await world.template()
    world.written()
    await change(world, networkPolicy={"ingress": [{"ports": [{"port": 80}]}]})
    assert world.written() == ["patch networkpolicies"]
    assert (await policy(world))["ingress"] == [{"ports": [{"port": 80, "protocol": "TCP"}]}]
    assert "egress" not in await policy(world)
    await change(world, envVarsInjectionPolicy="Allowed")
    await world.patch(SANDBOX_TEMPLATE, "python", {"metadata": {"labels": {"color": "red"}}})
    await world.wait(60)
    assert world.written() == []


async def test_policy_changed_or_deleted_by_others_is_restored(world: World) -> None:
    await world.template()
    before = await policy(world)
    await world.patch(NETWORK_POLICY, POLICY, {"spec": {"egress": [{}]}})
    assert await policy(world) == before
    await world.delete(NETWORK_POLICY, POLICY)
    assert await policy(world) == before


async def test_removed_label_is_restored(world: World) -> None:
    await world.template()
    await world.patch(SANDBOX_TEMPLATE, "python", {"metadata": {"labels": {TEMPLATE_REF_HASH: None}}})
    assert (await world.get(SANDBOX_TEMPLATE, "python"))["metadata"]["labels"] == {TEMPLATE_REF_HASH: HASH}


async def test_unmanaged_template_has_no_policy(world: World) -> None:
    await world.template(networkPolicyManagement="Unmanaged")
    assert await world.all(NETWORK_POLICY) == []
    await change(world, networkPolicyManagement="Managed")
    assert await world.exists(NETWORK_POLICY, POLICY)
    world.written()
    await change(world, networkPolicyManagement="Unmanaged")
    assert world.written() == ["delete networkpolicies"]
    assert await world.all(NETWORK_POLICY) == []


async def test_foreign_policy_is_an_error_until_it_is_deleted(world: World) -> None:
    made = await world.create(NETWORK_POLICY, POLICY, spec={"podSelector": {}, "policyTypes": ["Ingress"]})
    await world.template()
    await world.wait(60)
    assert await world.get(NETWORK_POLICY, POLICY) == made
    assert world.controllers.templates.controller.failures > 1
    await world.delete(NETWORK_POLICY, POLICY)
    assert (await policy(world))["podSelector"] == {"matchLabels": {TEMPLATE_REF_HASH: HASH}}


async def test_deleting_a_template_deletes_its_policy(world: World) -> None:
    await world.template()
    world.written()
    await world.delete(SANDBOX_TEMPLATE, "python")
    await world.gone(NETWORK_POLICY, POLICY)
    assert world.written() == []


async def test_policy_selects_the_pods_of_its_template(world: World) -> None:
    """It selects pods of pools and of claims, warm and cold, and no others."""
    await world.template(envVarsInjectionPolicy="Allowed")
    await world.pool(1)
    await world.claim("warm")
    await world.claim("cold", env=[{"name": "A", "value": "1"}])
    await world.served(2)
    await world.filled(1)
    await world.sandbox("alone")
    selector = f"{TEMPLATE_REF_HASH}={HASH}"
    pods = (await world.client.list(POD, world.namespace, label_selector=selector))["items"]
    boxes = {box["metadata"]["name"] for box in await world.all(SANDBOX)}
    assert len(boxes) == 4
    assert {pod["metadata"]["name"] for pod in pods} == boxes - {"alone"}


async def test_policy_is_written_by_the_field_manager_sandpool(world: World) -> None:
    await world.template()
    found = await world.get(NETWORK_POLICY, POLICY)
    assert {each["manager"] for each in found["metadata"]["managedFields"]} == {"sandpool"}


async def test_templates_emit_no_events(world: World) -> None:
    await world.template()
    await change(world, networkPolicyManagement="Unmanaged")
    assert await world.events() == []


async def template_of(world: World, sandbox: str) -> str:
    """The template whose policy selects the pod of a sandbox."""
    labels = (await world.get(POD, sandbox))["metadata"]["labels"]
    found: str = labels[TEMPLATE_REF_HASH]
    return found


@pytest.mark.parametrize("cold", [False, True])
async def test_sandbox_stays_below_the_policy_of_its_template_if_its_claim_names_another_pool(
    world: World, cold: bool
) -> None:
    """Who may change a claim but no template must not choose the network of a sandbox that runs."""
    await world.template(networkPolicy={"ingress": []})
    await world.template(name="open", networkPolicyManagement="Unmanaged")
    await world.pool(0 if cold else 1)
    await world.pool(0, name="open", sandboxTemplateRef={"name": "open"})
    await world.claim("mine")
    box = (await world.served(1))["mine"]["metadata"]["name"]
    await world.patch(SANDBOX_CLAIM, "mine", {"spec": {"warmPoolRef": {"name": "open"}}})
    await world.wait(60)
    assert await template_of(world, box) == HASH
    assert (await world.get(SANDBOX, box))["metadata"]["labels"][TEMPLATE_REF_HASH] == HASH
    await world.restart()
    await world.wait(60)
    assert await template_of(world, box) == HASH


async def test_sandbox_of_a_deleted_template_gets_the_policy_of_its_pool(world: World) -> None:
    """The policy of a deleted template is deleted with it, and without one nothing would be closed."""
    await world.template()
    await world.template(name="next")
    await world.pool(1)
    await world.claim("mine")
    box = (await world.served(1))["mine"]["metadata"]["name"]
    await world.patch(SANDBOX_WARM_POOL, "pool", {"spec": {"sandboxTemplateRef": {"name": "next"}}})
    await world.delete(SANDBOX_TEMPLATE, "python")
    await world.patch(SANDBOX_CLAIM, "mine", {"metadata": {"annotations": {"example.com/note": "look"}}})
    await world.restart()
    await world.wait(60)
    assert await template_of(world, box) == name_hash("next")
