from __future__ import annotations

from collections.abc import Callable

import pytest

from sandpool.api.kinds import BUILT_IN, DEPLOYMENT, NAMESPACE, POD, SELF_SUBJECT_ACCESS_REVIEW
from sandpool.api.resource import ResourceType
from sandpool.server.openapi.operations import Operation, operations
from sandpool.server.resources import Resource

BuiltIn = Callable[[ResourceType], Resource]


def by_id(resource: Resource) -> dict[str, Operation]:
    return {operation.id: operation for operation in operations(resource)}


def test_namespaced_kind_can_be_listed_in_all_namespaces(built_in: BuiltIn) -> None:
    found = by_id(built_in(DEPLOYMENT))
    assert found["listAppsV1NamespacedDeployment"].path == "/apis/apps/v1/namespaces/{namespace}/deployments"
    assert found["listAppsV1DeploymentForAllNamespaces"].path == "/apis/apps/v1/deployments"
    assert found["readAppsV1NamespacedDeployment"].answer == "io.k8s.api.apps.v1.Deployment"
    assert found["deleteAppsV1CollectionNamespacedDeployment"].action == "deletecollection"


def test_only_the_verbs_of_a_kind_are_offered(built_in: BuiltIn) -> None:
    assert [operation.method for operation in operations(built_in(SELF_SUBJECT_ACCESS_REVIEW))] == ["post"]
    assert "deleteCoreV1CollectionNamespace" not in by_id(built_in(NAMESPACE))


def test_built_in_kinds_take_strategic_merge_patches_and_custom_ones_do_not(
    built_in: BuiltIn, widget: Resource
) -> None:
    strategic = "application/strategic-merge-patch+json"
    assert strategic in by_id(built_in(DEPLOYMENT))["patchAppsV1NamespacedDeployment"].body_types
    custom = by_id(widget)["patchExampleComV1NamespacedWidget"]
    assert custom.body_types == (
        "application/apply-patch+yaml",
        "application/json-patch+json",
        "application/merge-patch+json",
    )


@pytest.mark.parametrize("verb", ["create", "replace", "patch"])
def test_writes_declare_field_validation_and_dry_run(widget: Resource, verb: str) -> None:
    """kubectl looks these parameters up before it relies on the server for validation."""
    names = {name for name, _ in by_id(widget)[f"{verb}ExampleComV1NamespacedWidget"].parameters}
    assert {"dryRun", "fieldManager", "fieldValidation"} <= names
    assert ("force" in names) == (verb == "patch")


def test_subresources_exchange_their_own_kind(built_in: BuiltIn) -> None:
    scale = by_id(built_in(DEPLOYMENT))["replaceAppsV1NamespacedDeploymentScale"]
    assert (scale.kind, scale.body) == (("autoscaling", "v1", "Scale"), "io.k8s.api.autoscaling.v1.Scale")
    status = by_id(built_in(DEPLOYMENT))["patchAppsV1NamespacedDeploymentStatus"]
    assert status.kind == ("apps", "v1", "Deployment")
    pod = by_id(built_in(POD))
    assert pod["createCoreV1NamespacedPodEviction"].body == "io.k8s.api.policy.v1.Eviction"
    assert pod["connectCoreV1GetNamespacedPodExec"].action == "connect"
    assert pod["readCoreV1NamespacedPodLog"].answer == ""


def test_operation_ids_are_unique(built_in: BuiltIn) -> None:
    found = [operation.id for type in BUILT_IN for operation in operations(built_in(type))]
    assert len(found) == len(set(found))
