from __future__ import annotations

from collections.abc import Callable

from sandpool.api.kinds import DEPLOYMENT
from sandpool.api.resource import ResourceType
from sandpool.server.openapi.definitions import (
    OBJECT_META,
    definition_name,
    definition_of_kind,
    list_definition_name,
    reachable,
)
from sandpool.server.resources import Resource


def test_built_in_kinds_keep_their_names_and_custom_ones_reverse_their_group(
    built_in: Callable[[ResourceType], Resource], widget: Resource
) -> None:
    assert definition_name(built_in(DEPLOYMENT)) == "io.k8s.api.apps.v1.Deployment"
    assert list_definition_name(built_in(DEPLOYMENT)) == "io.k8s.api.apps.v1.DeploymentList"
    assert definition_name(widget) == "com.example.v1.Widget"
    assert list_definition_name(widget) == "com.example.v1.WidgetList"


def test_kinds_of_subresources_have_a_definition() -> None:
    assert definition_of_kind("autoscaling", "v1", "Scale") == "io.k8s.api.autoscaling.v1.Scale"
    assert definition_of_kind("", "v1", "PodExecOptions") is None


def test_definitions_include_everything_they_refer_to(built_in: Callable[[ResourceType], Resource]) -> None:
    found = reachable([built_in(DEPLOYMENT)], [])
    assert {"io.k8s.api.apps.v1.DeploymentSpec", "io.k8s.api.core.v1.PodSpec", OBJECT_META} <= found.keys()
    assert "io.k8s.api.core.v1.Service" not in found


def test_custom_kind_has_the_descriptions_of_its_author(widget: Resource) -> None:
    schema = reachable([widget], [])["com.example.v1.Widget"]
    assert schema["description"] == "A widget is ours."
    assert schema["properties"]["spec"]["description"] == "Wanted state."
    assert schema["properties"]["metadata"]["$ref"] == OBJECT_META
    assert schema["x-kubernetes-group-version-kind"] == [{"group": "example.com", "kind": "Widget", "version": "v1"}]
