from __future__ import annotations

from pathlib import Path
from typing import Any

from sandpool.api.kinds import NETWORK_POLICY, SANDBOX_TEMPLATE
from sandpool.api.resource import Object, SharedObject
from sandpool.api.views import NetworkPolicyView, TemplateView
from sandpool.controllers.template.plan import TemplatePlan, network_policy_spec, plan_template
from sandpool.controllers.writer import Create, Delete, Patch
from sandpool.kube.client import MergePatch
from sandpool.server.api_server import ApiServer
from tests.support import sandbox_objects

HASH = "agents.x-k8s.io/sandbox-template-ref-hash"
LABEL = Patch(SANDBOX_TEMPLATE, "test-template", {"metadata": {"labels": {HASH: "69155462"}}})


def made(*, labelled: bool = True, metadata: Object | None = None, **spec: Any) -> Object:
    labels = {"labels": {HASH: "69155462"}} if labelled else {}
    return sandbox_objects.template("test-template", spec=spec, metadata={**labels, **(metadata or {})})


def planned(template: Object, policy: SharedObject | None = None) -> TemplatePlan:
    found = None if policy is None else NetworkPolicyView.from_object(policy)
    return plan_template(TemplateView.from_object(template), found)


def policy_of(template: Object) -> Object:
    return sandbox_objects.template_policy(template, network_policy_spec(TemplateView.from_object(template)))


def test_new_template_gets_its_label_and_its_policy() -> None:
    template = made(labelled=False)
    plan = planned(template)
    assert plan.label == LABEL
    assert plan.policy == Create(
        NETWORK_POLICY,
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {
                "name": "test-template-network-policy",
                "namespace": "default",
                "ownerReferences": [
                    {
                        "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
                        "kind": "SandboxTemplate",
                        "name": "test-template",
                        "uid": template["metadata"]["uid"],
                        "controller": True,
                        "blockOwnerDeletion": True,
                    }
                ],
            },
            "spec": network_policy_spec(TemplateView.from_object(template)),
        },
    )
    assert not plan.error


def test_edge_54_second_reconcile_writes_nothing() -> None:
    template = made()
    assert planned(template, policy_of(template)) == TemplatePlan()


def test_empty_management_means_managed() -> None:
    assert isinstance(planned(made(networkPolicyManagement="")).policy, Create)


def test_wrong_label_is_corrected() -> None:
    template = made(metadata={"labels": {HASH: "00000000", "mine": "1"}})
    assert planned(template, policy_of(template)) == TemplatePlan(LABEL)


def test_changed_template_changes_its_policy() -> None:
    before, after = made(), made(networkPolicy={"ingress": [{}]})
    assert planned(after, policy_of(before)).policy == Patch(
        NETWORK_POLICY, "test-template-network-policy", {"spec": {"ingress": [{}], "egress": None}}
    )


def test_policy_changed_by_others_is_restored() -> None:
    template = made(networkPolicy={})
    policy = policy_of(template)
    policy["spec"] = {**policy["spec"], "policyTypes": ["Ingress"], "egress": [{}]}
    assert planned(template, policy).policy == Patch(
        NETWORK_POLICY, "test-template-network-policy", {"spec": {"policyTypes": ["Ingress", "Egress"], "egress": None}}
    )


def test_equivalent_policy_is_left_alone() -> None:
    template = made(networkPolicy={"ingress": [{"from": []}]})
    policy = policy_of(template)
    policy["spec"] = {**policy["spec"], "ingress": [{}], "egress": []}
    assert planned(template, policy) == TemplatePlan()


def test_policy_of_an_unmanaged_template_is_deleted() -> None:
    template = made(networkPolicyManagement="Unmanaged")
    policy = policy_of(template)
    assert planned(template, policy) == TemplatePlan(
        policy=Delete(NETWORK_POLICY, "test-template-network-policy", policy["metadata"]["uid"])
    )
    policy["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert planned(template, policy) == TemplatePlan()


def test_unmanaged_template_without_policy_needs_no_write() -> None:
    assert planned(made(networkPolicyManagement="Unmanaged")) == TemplatePlan()


def test_edge_54_foreign_policy_of_an_unmanaged_template_survives() -> None:
    template = made(networkPolicyManagement="Unmanaged")
    policy = policy_of(template)
    for references in ([], [{**policy["metadata"]["ownerReferences"][0], "uid": "an earlier one"}]):
        policy["metadata"]["ownerReferences"] = references
        assert planned(template, policy) == TemplatePlan()


def test_edge_54_foreign_policy_of_a_managed_template_is_an_error() -> None:
    template = made(labelled=False)
    policy = policy_of(template)
    del policy["metadata"]["ownerReferences"]
    assert planned(template, policy) == TemplatePlan(
        LABEL,
        error=(
            'NetworkPolicy "test-template-network-policy" is not controlled by template "test-template"; '
            "refusing to change it"
        ),
    )


def test_template_being_deleted_is_left_alone() -> None:
    deleting = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    for template in (
        made(labelled=False, metadata=deleting),
        made(labelled=False, metadata=deleting, networkPolicyManagement="Unmanaged"),
    ):
        assert planned(template, policy_of(template)) == TemplatePlan()


async def test_plans_converge_on_a_real_api(tmp_path: Path) -> None:
    """The stored policy, also after patches, is the one that the next plan expects."""
    policies: list[Object | None] = [
        None,
        {"ingress": [{"ports": [{"port": 80}], "from": []}], "egress": []},
        {"egress": [{"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}], "ports": [{"port": "dns", "protocol": "UDP"}]}]},
        {},
        None,
    ]
    server = ApiServer(tmp_path)
    await server.start()
    try:
        client = server.client()
        stored: SharedObject = {}
        for policy in policies:
            template = made(networkPolicy=policy)
            write = planned(template, stored or None).policy
            if isinstance(write, Create):
                # The template itself is not in this API, and what belongs to nothing would be collected.
                ownerless = {key: value for key, value in write.object["metadata"].items() if key != "ownerReferences"}
                stored = await client.create(NETWORK_POLICY, {**write.object, "metadata": ownerless}, "default")
            else:
                assert isinstance(write, Patch)
                stored = await client.patch(NETWORK_POLICY, write.name, MergePatch(write.body), "default")
            stored = {**stored, "metadata": policy_of(template)["metadata"]}
            assert planned(template, stored) == TemplatePlan()
    finally:
        await server.stop()
