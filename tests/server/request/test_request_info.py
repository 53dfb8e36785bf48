from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.api.kinds import BUILT_IN, SANDPOOL
from sandpool.api.resource import ResourceType
from sandpool.kube.transport import Target
from sandpool.server.request.request_info import RequestInfo, of_target, parse, truthy


def resource(path: str, verb: str, **attributes: object) -> RequestInfo:
    return RequestInfo(path, verb, True, **{"version": "v1", **attributes})  # type: ignore[arg-type]


POD = {"resource": "pods", "namespace": "ns", "name": "p"}


@pytest.mark.parametrize(
    "method, path, verb, attributes",
    [
        ("GET", "/api/v1/pods", "list", {"resource": "pods"}),
        ("HEAD", "/api/v1/pods", "list", {"resource": "pods"}),
        ("GET", "/api/v1/pods/", "list", {"resource": "pods"}),
        ("GET", "/api/v1/namespaces/ns/pods", "list", {"resource": "pods", "namespace": "ns"}),
        ("POST", "/api/v1/namespaces/ns/pods", "create", {"resource": "pods", "namespace": "ns"}),
        ("DELETE", "/api/v1/namespaces/ns/pods", "deletecollection", {"resource": "pods", "namespace": "ns"}),
        ("GET", "/api/v1/namespaces/ns/pods/p", "get", POD),
        ("PUT", "/api/v1/namespaces/ns/pods/p", "update", POD),
        ("PATCH", "/api/v1/namespaces/ns/pods/p", "patch", POD),
        ("DELETE", "/api/v1/namespaces/ns/pods/p", "delete", POD),
        ("OPTIONS", "/api/v1/namespaces/ns/pods/p", "options", POD),
        ("PUT", "/api/v1/namespaces/ns/pods/p/status", "update", {**POD, "subresource": "status"}),
        ("POST", "/api/v1/namespaces/ns/pods/p/binding", "create", {**POD, "subresource": "binding"}),
        ("GET", "/api/v1/namespaces/ns/pods/p/proxy/a/b", "get", {**POD, "subresource": "proxy", "rest": ("a", "b")}),
        # A namespace is an object, and the place of others.
        ("GET", "/api/v1/namespaces", "list", {"resource": "namespaces"}),
        ("GET", "/api/v1/namespaces/ns", "get", {"resource": "namespaces", "namespace": "ns", "name": "ns"}),
        ("PUT", "/api/v1/namespaces/ns/finalize", "update", {"resource": "namespaces", "subresource": "finalize"}),
        ("PATCH", "/api/v1/namespaces/ns/status", "patch", {"resource": "namespaces", "subresource": "status"}),
        # The old spelling of a watch.
        ("GET", "/api/v1/watch/pods", "watch", {"resource": "pods"}),
        ("GET", "/api/v1/watch/namespaces/ns/pods", "watch", {"resource": "pods", "namespace": "ns"}),
        ("GET", "/api/v1/watch/namespaces/ns/pods/p", "watch", POD),
        ("GET", "/api/v1/watch", "list", {"resource": "watch"}),
        # Names are decoded after the path was taken apart.
        ("GET", "/api/v1/namespaces/ns/pods/a%2Fb", "get", {**POD, "name": "a/b"}),
        ("GET", "/api/v1/namespaces/ns/pods/a%20b%25", "get", {**POD, "name": "a b%"}),
        ("GET", "/api/v1/namespaces/n%73/pods/p", "get", POD),
        ("GET", "/api/v1/namespaces/ns/pods/%", "get", {**POD, "name": "%"}),
        # Empty segments are segments: nothing is found under an empty name by accident.
        ("GET", "/api/v1//pods", "get", {"resource": "", "name": "pods"}),
        ("GET", "//api/v1/pods", "list", {"resource": "pods"}),
    ],
)
def test_resource_paths_are_parsed(method: str, path: str, verb: str, attributes: dict[str, object]) -> None:
    if attributes.get("subresource") in ("finalize", "status") and attributes["resource"] == "namespaces":
        attributes = {**attributes, "namespace": "ns", "name": "ns"}
    assert parse(method, path, {}) == resource(path, verb, **attributes)


def test_group_and_version_are_parsed() -> None:
    info = parse("GET", "/apis/apps/v1/namespaces/ns/deployments/d/scale", {})
    assert (info.group, info.version, info.resource, info.subresource) == ("apps", "v1", "deployments", "scale")


@pytest.mark.parametrize(
    "path", ["", "/", "/api", "/api/v1", "/apis", "/apis/apps", "/apis/apps/v1", "/readyz", "/v1/x"]
)
def test_non_resource_paths_have_their_method_as_verb(path: str) -> None:
    assert parse("GET", path, {}) == RequestInfo(path, "get")


@pytest.mark.parametrize(
    "path, query, verb",
    [
        ("/api/v1/pods", {"watch": "true"}, "watch"),
        ("/api/v1/pods", {"watch": "1"}, "watch"),
        ("/api/v1/pods", {"watch": ""}, "watch"),
        ("/api/v1/pods", {"watch": "0"}, "list"),
        ("/api/v1/pods", {"watch": "False"}, "list"),
        ("/api/v1/namespaces/ns/pods/p", {"watch": "true"}, "get"),
    ],
)
def test_only_a_collection_is_watched_by_query(path: str, query: dict[str, str], verb: str) -> None:
    assert parse("GET", path, query).verb == verb


@pytest.mark.parametrize(
    "selector, name",
    [
        ("metadata.name=p", "p"),
        ("metadata.name==p", "p"),
        ("status.phase=Running,metadata.name=p", "p"),
        ("metadata.name=a\\,b", "a,b"),
        ("metadata.name!=p", ""),
        ("metadata.namespace=p", ""),
        ("metadata.name=", ""),
        ("metadata.name", ""),
        ("metadata.name=..", ""),
        ("metadata.name=a/b", ""),
        ("", ""),
    ],
)
def test_list_and_watch_of_one_name_are_about_that_object(selector: str, name: str) -> None:
    query = {"fieldSelector": selector}
    path = "/api/v1/namespaces/ns/pods"
    assert parse("GET", path, query).name == name
    watching = parse("GET", path, {**query, "watch": "true"})
    assert (watching.verb, watching.name) == ("watch", name)
    assert parse("GET", "/api/v1/namespaces/ns/pods/other", query).name == "other"
    assert parse("GET", "/api/v1/watch/namespaces/ns/pods", query).name == ""
    assert parse("DELETE", path, query).name == ""
    assert parse("POST", path, query).name == ""


def test_create_is_never_a_watch() -> None:
    assert parse("POST", "/api/v1/namespaces/ns/pods", {"watch": "true"}).verb == "create"


@pytest.mark.parametrize(
    "text, expected", [(None, False), ("0", False), ("false", False), ("FALSE", False), ("", True), ("f", True)]
)
def test_only_zero_and_false_are_false(text: str | None, expected: bool) -> None:
    assert truthy(text) is expected


_TYPES = st.sampled_from([*BUILT_IN, *SANDPOOL, ResourceType("example.com", "v1", "Watch", "watch", namespaced=False)])
_NAMES = st.sampled_from(["", "a", "namespaces", "watch", "status", "a/b", "a%2Fb", "ä b", "system:node"])


@given(_TYPES, _NAMES, _NAMES, st.data(), st.sampled_from(["POST", "PATCH", "GET", "PUT", "DELETE"]))
def test_known_target_says_what_its_path_says(
    type: ResourceType, namespace: str, name: str, data: st.DataObject, method: str
) -> None:
    subresource = data.draw(st.sampled_from(["", *sorted(type.subresources)])) if name else ""
    namespace = namespace if type.namespaced else ""
    path = type.path(namespace or None, name or None, subresource or None)
    target = Target(path, type, namespace, name, subresource)

    known = of_target(method, path, target)

    if known is not None:
        assert known == parse(method, path, {})
    assert (known is not None) == (method in ("POST", "PATCH") and type.plural not in ("namespaces", "watch"))


def test_target_of_another_path_is_ignored() -> None:
    pods = BUILT_IN[0]
    target = Target(pods.path("ns", "a"), pods, "ns", "a")
    assert of_target("PATCH", pods.path("ns", "b"), target) is None
