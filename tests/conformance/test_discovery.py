"""Discovery: which groups, versions, resources and verbs there are, in the old form and the aggregated one."""

from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.kinds import BUILT_IN
from sandpool.api.resource import ResourceType
from sandpool.kube.client import Client
from sandpool.testing.waiting import until
from tests.support.api_access import Raw
from tests.support.api_objects import custom_type, definition
from tests.support.custom_kinds import install

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
KUBECTL = (
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,"
    "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json"
)


async def get(raw: Raw, path: str, accept: str = "application/json") -> Any:
    answer = await raw("GET", path, headers={"Accept": accept})
    assert answer.status == 200, answer.body
    return answer.json()


async def test_core_group_lists_its_versions(raw: Raw) -> None:
    found = await get(raw, "/api")
    assert (found["kind"], found["versions"]) == ("APIVersions", ["v1"])
    [address] = found["serverAddressByClientCIDRs"]
    assert address["clientCIDR"] == "0.0.0.0/0"
    assert ":" in address["serverAddress"]


async def test_groups_are_listed(raw: Raw) -> None:
    found = await get(raw, "/apis")
    assert (found["kind"], found["apiVersion"]) == ("APIGroupList", "v1")
    by_name = {group["name"]: group for group in found["groups"]}
    assert {type.group for type in BUILT_IN if type.group} <= by_name.keys()
    assert by_name["apps"] == {
        "name": "apps",
        "versions": [{"groupVersion": "apps/v1", "version": "v1"}],
        "preferredVersion": {"groupVersion": "apps/v1", "version": "v1"},
    }


async def test_one_group_lists_its_versions(raw: Raw) -> None:
    assert await get(raw, "/apis/coordination.k8s.io") == {
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": "coordination.k8s.io",
        "versions": [{"groupVersion": "coordination.k8s.io/v1", "version": "v1"}],
        "preferredVersion": {"groupVersion": "coordination.k8s.io/v1", "version": "v1"},
    }


@pytest.mark.parametrize("type", BUILT_IN, ids=str)
async def test_built_in_kinds_have_the_verbs_of_kubernetes(raw: Raw, type: ResourceType) -> None:
    """Ours and the real ones have the same names and verbs, and the subresources that are part of the object; what
    only a node can answer, such as logs, is there when nodes are."""
    found = await get(raw, type.base_path)
    assert (found["kind"], found["groupVersion"]) == ("APIResourceList", type.api_version)
    by_name = {resource["name"]: resource for resource in found["resources"]}
    resource = by_name[type.plural]
    assert (resource["kind"], resource["singularName"], resource["namespaced"]) == (
        type.kind,
        type.singular,
        type.namespaced,
    )
    assert sorted(resource["verbs"]) == sorted(type.verbs)
    assert resource.get("shortNames", []) == list(type.short_names)
    assert resource.get("categories", []) == list(type.categories)
    prefix = type.plural + "/"
    served = {name.removeprefix(prefix) for name in by_name if name.startswith(prefix)}
    assert type.subresources & {"status", "scale"} <= served


@pytest.mark.parametrize("accept", [AGGREGATED, KUBECTL], ids=["v2", "kubectl"])
async def test_aggregated_discovery_lists_all_groups(raw: Raw, accept: str) -> None:
    answer = await raw("GET", "/apis", headers={"Accept": accept})
    assert answer.content_type == AGGREGATED
    found = answer.json()
    assert (found["kind"], found["apiVersion"]) == ("APIGroupDiscoveryList", "apidiscovery.k8s.io/v2")
    by_name = {group["metadata"]["name"]: group for group in found["items"]}
    assert {type.group for type in BUILT_IN if type.group} <= by_name.keys()
    [version] = by_name["apps"]["versions"]
    assert (version["version"], version["freshness"]) == ("v1", "Current")
    [deployments] = [each for each in version["resources"] if each["resource"] == "deployments"]
    assert {key: deployments[key] for key in ("scope", "singularResource", "shortNames", "categories")} == {
        "scope": "Namespaced",
        "singularResource": "deployment",
        "shortNames": ["deploy"],
        "categories": ["all"],
    }
    assert deployments["responseKind"]["kind"] == "Deployment"
    assert "watch" in deployments["verbs"]
    by_subresource = {each["subresource"]: each for each in deployments["subresources"]}
    assert by_subresource["scale"]["responseKind"] == {"group": "autoscaling", "version": "v1", "kind": "Scale"}
    assert sorted(by_subresource["status"]["verbs"]) == ["get", "patch", "update"]


async def test_aggregated_discovery_lists_the_core_group(raw: Raw) -> None:
    found = await get(raw, "/api", AGGREGATED)
    [group] = found["items"]
    assert not group["metadata"].get("name")
    resources = {each["resource"]: each for each in group["versions"][0]["resources"]}
    assert {"pods", "configmaps", "secrets", "namespaces", "services"} <= resources.keys()
    assert resources["namespaces"]["scope"] == "Cluster"
    assert {"status", "binding", "eviction"} <= {each["subresource"] for each in resources["pods"]["subresources"]}


async def test_unknown_version_of_discovery_is_not_acceptable(raw: Raw) -> None:
    accept = "application/json;g=apidiscovery.k8s.io;v=v9;as=APIGroupDiscoveryList"
    assert (await raw("GET", "/apis", headers={"Accept": accept})).status == 406
    found = await get(raw, "/apis", accept + ",application/json")
    assert found["kind"] == "APIGroupList"


async def test_unchanged_discovery_is_not_modified(raw: Raw) -> None:
    headers = {"Accept": AGGREGATED}
    answer = await raw("GET", "/apis", headers=headers)
    again = await raw("GET", "/apis", headers={**headers, "If-None-Match": answer.headers["etag"]})
    assert (again.status, again.body) == (304, b"")


async def test_custom_kinds_are_in_aggregated_discovery(raw: Raw, client: Client, namespace: str) -> None:
    type = custom_type(f"{namespace}.example.com")
    await install(client, definition(type, subresources=("status",)))

    async def listed() -> Any:
        found = await get(raw, "/apis", AGGREGATED)
        return [group for group in found["items"] if group["metadata"]["name"] == type.group]

    [group] = await until(listed)
    [version] = group["versions"]
    [widgets] = version["resources"]
    assert (widgets["resource"], widgets["responseKind"]) == (
        "widgets",
        {"group": type.group, "version": "v1", "kind": "Widget"},
    )
    assert [each["subresource"] for each in widgets["subresources"]] == ["status"]


@pytest.mark.parametrize("path", ["/apis/nowhere.example.com", "/apis/apps/v9", "/api/v9", "/api/v1/nothings"])
async def test_unknown_groups_and_versions_are_not_found(raw: Raw, path: str) -> None:
    assert (await raw("GET", path)).status == 404


async def test_version_names_the_kubernetes_version(raw: Raw) -> None:
    found = await get(raw, "/version")
    assert (found["major"], found["minor"].isdigit()) == ("1", True)
    assert found["gitVersion"].startswith(f"v1.{found['minor']}.")
    needed = {"major", "minor", "gitVersion", "gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler"}
    assert needed | {"platform"} <= found.keys()


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz"])
async def test_health_endpoints_answer_ok(raw: Raw, path: str) -> None:
    answer = await raw("GET", path)
    assert (answer.status, answer.body) == (200, b"ok")
    assert answer.content_type.startswith("text/plain")
    verbose = await raw("GET", path + "?verbose")
    assert b"check passed" in verbose.body


async def test_root_lists_the_paths(raw: Raw) -> None:
    assert {"/api", "/apis", "/apis/apps/v1", "/healthz", "/openapi/v3", "/version"} <= set(
        (await get(raw, "/"))["paths"]
    )
