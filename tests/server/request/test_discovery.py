from __future__ import annotations

from typing import Any

import orjson
import pytest

from sandpool.api.resource import ResourceType
from sandpool.api.schema.shape import Shape
from sandpool.server.kinds.strategies import KindStrategy
from sandpool.server.request import discovery
from sandpool.server.resources import Resource

POD = ResourceType(
    "",
    "v1",
    "Pod",
    "pods",
    short_names=("po",),
    categories=("all",),
    subresources=frozenset({"status", "log", "exec", "eviction"}),
)
NAMESPACE = ResourceType(
    "", "v1", "Namespace", "namespaces", namespaced=False, short_names=("ns",), subresources=frozenset({"finalize"})
)
EVENT = ResourceType("", "v1", "Event", "events")
NEW_EVENT = ResourceType("events.k8s.io", "v1", "Event", "events")
DEPLOYMENT = ResourceType("apps", "v1", "Deployment", "deployments", subresources=frozenset({"status", "scale"}))
REVIEW = ResourceType(
    "authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews", namespaced=False, verbs=("create",)
)
WIDGET = ResourceType(
    "example.com", "v1", "Widget", "widgets", short_names=("wd",), subresources=frozenset({"status", "scale"})
)


def no_shape() -> Shape:
    raise AssertionError("discovery reads no shape")


def stored(type: ResourceType, **more: Any) -> Resource:
    return Resource(type, no_shape, KindStrategy(), **more)


def converted(type: ResourceType, **more: Any) -> Resource:
    return stored(type, to_stored=lambda obj: obj, from_stored=lambda obj: obj, **more)


def gadget(version: str) -> ResourceType:
    return ResourceType("multi.example.com", version, "Gadget", "gadgets", namespaced=False)


RESOURCES = [
    stored(WIDGET, custom=True),
    converted(gadget("v1alpha1"), custom=True),
    converted(gadget("v1beta1"), custom=True),
    stored(gadget("v2"), custom=True),
    *map(stored, (REVIEW, DEPLOYMENT, POD, NAMESPACE, EVENT)),
    converted(NEW_EVENT, storage="events"),
]


def test_groups_are_ordered_as_in_kubernetes_with_the_preferred_version_first() -> None:
    listing = discovery.group_list(RESOURCES)
    assert (listing["kind"], listing["apiVersion"]) == ("APIGroupList", "v1")
    assert [group["name"] for group in listing["groups"]] == [
        "apps",
        "events.k8s.io",
        "authorization.k8s.io",
        "example.com",
        "multi.example.com",
    ]
    assert listing["groups"][-1] == {
        "name": "multi.example.com",
        "versions": [
            {"groupVersion": "multi.example.com/v2", "version": "v2"},
            {"groupVersion": "multi.example.com/v1beta1", "version": "v1beta1"},
            {"groupVersion": "multi.example.com/v1alpha1", "version": "v1alpha1"},
        ],
        "preferredVersion": {"groupVersion": "multi.example.com/v2", "version": "v2"},
    }


def test_one_group_lists_its_versions() -> None:
    assert discovery.group(RESOURCES, "apps") == {
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": "apps",
        "versions": [{"groupVersion": "apps/v1", "version": "v1"}],
        "preferredVersion": {"groupVersion": "apps/v1", "version": "v1"},
    }


def test_unknown_groups_and_versions_are_none() -> None:
    assert discovery.group(RESOURCES, "nope.example.com") is None
    assert discovery.group(RESOURCES, "") is None
    assert discovery.resource_list(RESOURCES, "apps", "v9") is None
    assert discovery.resource_list(RESOURCES, "nope", "v1") is None


def test_core_resources_are_listed_with_their_subresources() -> None:
    listing = discovery.resource_list(RESOURCES, "", "v1")
    assert listing is not None
    assert listing["groupVersion"] == "v1"
    assert [entry["name"] for entry in listing["resources"]] == [
        "events",
        "namespaces",
        "namespaces/finalize",
        "pods",
        "pods/eviction",
        "pods/exec",
        "pods/log",
        "pods/status",
    ]
    by_name = {entry["name"]: entry for entry in listing["resources"]}
    assert by_name["pods"] == {
        "name": "pods",
        "singularName": "pod",
        "namespaced": True,
        "kind": "Pod",
        "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
        "shortNames": ["po"],
        "categories": ["all"],
        "storageVersionHash": "xPOwRZ+Yhw8=",
    }
    assert by_name["pods/exec"] == {
        "name": "pods/exec",
        "singularName": "",
        "namespaced": True,
        "kind": "PodExecOptions",
        "verbs": ["create", "get"],
    }
    assert by_name["pods/eviction"] == {
        "name": "pods/eviction",
        "singularName": "",
        "namespaced": True,
        "group": "policy",
        "version": "v1",
        "kind": "Eviction",
        "verbs": ["create"],
    }


def test_scale_is_of_the_autoscaling_group() -> None:
    listing = discovery.resource_list(RESOURCES, "apps", "v1")
    assert listing is not None
    assert listing["apiVersion"] == "v1"
    assert listing["resources"][1] == {
        "name": "deployments/scale",
        "singularName": "",
        "namespaced": True,
        "group": "autoscaling",
        "version": "v1",
        "kind": "Scale",
        "verbs": ["get", "patch", "update"],
    }


@pytest.mark.parametrize(
    ("group", "version", "expected"),
    [
        ("example.com", "v1", "gIwvi5rymmg="),
        ("multi.example.com", "v1beta1", "WJp9a58Hl9A="),
        ("events.k8s.io", "v1", "r2yiGXH7wu8="),  # the same objects as core events
    ],
)
def test_storage_version_hash_is_that_of_kubernetes(group: str, version: str, expected: str) -> None:
    listing = discovery.resource_list(RESOURCES, group, version)
    assert listing is not None
    assert listing["resources"][0]["storageVersionHash"] == expected


def test_unstored_resource_has_no_storage_version_hash() -> None:
    listing = discovery.resource_list(RESOURCES, "authorization.k8s.io", "v1")
    assert listing is not None
    assert "storageVersionHash" not in listing["resources"][0]


def test_aggregated_discovery_holds_the_core_group_or_all_others() -> None:
    core = discovery.aggregated(RESOURCES, core=True, version="v2")
    others = discovery.aggregated(RESOURCES, core=False, version="v2beta1")
    assert (core["kind"], core["apiVersion"]) == ("APIGroupDiscoveryList", "apidiscovery.k8s.io/v2")
    assert others["apiVersion"] == "apidiscovery.k8s.io/v2beta1"
    assert [item["metadata"] for item in core["items"]] == [{}]
    assert [item["metadata"]["name"] for item in others["items"]][:2] == ["apps", "events.k8s.io"]
    assert others["items"][0]["versions"] == [
        {
            "version": "v1",
            "resources": [
                {
                    "resource": "deployments",
                    "responseKind": {"group": "", "version": "", "kind": "Deployment"},
                    "scope": "Namespaced",
                    "singularResource": "deployment",
                    "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
                    "subresources": [
                        {
                            "subresource": "scale",
                            "responseKind": {"group": "autoscaling", "version": "v1", "kind": "Scale"},
                            "verbs": ["get", "patch", "update"],
                        },
                        {
                            "subresource": "status",
                            "responseKind": {"group": "", "version": "", "kind": "Deployment"},
                            "verbs": ["get", "patch", "update"],
                        },
                    ],
                }
            ],
            "freshness": "Current",
        }
    ]


def test_aggregated_discovery_names_the_group_of_custom_kinds() -> None:
    document = discovery.aggregated(RESOURCES, core=False, version="v2")
    (widget,) = (item for item in document["items"] if item["metadata"]["name"] == "example.com")
    (entry,) = widget["versions"][0]["resources"]
    assert entry["responseKind"] == {"group": "example.com", "version": "v1", "kind": "Widget"}
    assert entry["shortNames"] == ["wd"]
    kinds = {sub["subresource"]: sub["responseKind"] for sub in entry["subresources"]}
    assert kinds == {
        "scale": {"group": "autoscaling", "version": "v1", "kind": "Scale"},
        "status": {"group": "example.com", "version": "v1", "kind": "Widget"},
    }


def test_versions_are_ordered_by_stability() -> None:
    versions = ["foo1", "v1alpha2", "v10", "v2", "v1beta1", "v11beta2", "v1", "v12alpha1", "foo10", "v3beta1"]
    assert sorted(versions, key=discovery.version_order) == [
        "v10",
        "v2",
        "v1",
        "v11beta2",
        "v3beta1",
        "v1beta1",
        "v12alpha1",
        "v1alpha2",
        "foo1",
        "foo10",
    ]


def test_entity_tag_follows_the_content() -> None:
    one, other = (orjson.dumps(discovery.aggregated(RESOURCES, core=core, version="v2")) for core in (True, False))
    assert discovery.etag(one) == discovery.etag(bytes(one)) != discovery.etag(other)
    assert discovery.etag(one).startswith('"')


def test_version_has_every_string_clients_require() -> None:
    version = discovery.version()
    assert all(isinstance(value, str) for value in version.values())
    assert (version["major"], version["minor"], version["gitVersion"]) == ("1", "36", "v1.36.3+sandpool")
    assert {"gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler", "platform"} <= version.keys()


def test_api_root_names_the_address() -> None:
    assert discovery.api_versions("127.0.0.1:6443") == {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": "127.0.0.1:6443"}],
    }
