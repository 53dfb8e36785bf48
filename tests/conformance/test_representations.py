"""In which forms objects can be had: metadata alone, YAML, compressed; and what is not acceptable."""

from __future__ import annotations

import gzip

import pytest
import yaml

from sandpool.api.kinds import CONFIG_MAP, SECRET
from sandpool.api.resource import ResourceType
from sandpool.kube.client import Client
from sandpool.testing.objects import new
from tests.support.api_access import Raw

PARTIAL = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
PARTIAL_LIST = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"


async def test_partial_metadata_of_an_object_are_served(raw: Raw, client: Client, namespace: str) -> None:
    created = await client.create(SECRET, new(SECRET, "a", stringData={"k": "v"}), namespace)
    answer = await raw("GET", SECRET.path(namespace, "a"), headers={"Accept": PARTIAL})
    assert answer.json() == {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": created["metadata"],
    }


async def test_partial_metadata_of_a_list_are_served(
    raw: Raw, client: Client, namespace: str, widgets: ResourceType
) -> None:
    created = await client.create(widgets, new(widgets, "a", spec={"n": 1}), namespace)
    answer = await raw("GET", widgets.path(namespace), headers={"Accept": PARTIAL_LIST})
    listed = answer.json()
    assert (listed["kind"], listed["apiVersion"]) == ("PartialObjectMetadataList", "meta.k8s.io/v1")
    assert int(listed["metadata"]["resourceVersion"]) > 0
    [item] = listed["items"]
    assert item["metadata"] == created["metadata"]
    assert "spec" not in item


async def test_partial_metadata_of_a_watch_are_served(raw: Raw, client: Client, namespace: str) -> None:
    start = (await client.list(SECRET, namespace))["metadata"]["resourceVersion"]
    created = await client.create(SECRET, new(SECRET, "a", stringData={"k": "v"}), namespace)
    target = SECRET.path(namespace) + f"?watch=true&resourceVersion={start}&timeoutSeconds=1"
    answer = await raw("GET", target, headers={"Accept": PARTIAL})
    [line] = answer.lines()
    assert line["type"] == "ADDED"
    assert line["object"] == {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": created["metadata"],
    }


async def test_yaml_is_served_on_request(raw: Raw, client: Client, namespace: str) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={"k": "yes"}), namespace)
    answer = await raw("GET", CONFIG_MAP.path(namespace, "a"), headers={"Accept": "application/yaml"})
    assert answer.content_type == "application/yaml"
    assert yaml.safe_load(answer.body) == created


@pytest.mark.parametrize("accept", ["application/json", "*/*", "text/html,*/*;q=0.8"])
async def test_json_is_served_on_request(raw: Raw, namespace: str, accept: str) -> None:
    answer = await raw("GET", SECRET.path(namespace), headers={"Accept": accept})
    assert (answer.status, answer.content_type) == (200, "application/json")


async def test_json_is_the_default(raw: Raw, namespace: str) -> None:
    answer = await raw("GET", SECRET.path(namespace))
    assert (answer.status, answer.content_type) == (200, "application/json")


@pytest.mark.parametrize("accept", ["text/html", "application/json;as=Frob;v=v1;g=meta.k8s.io"])
async def test_unknown_media_type_is_not_acceptable(raw: Raw, namespace: str, accept: str) -> None:
    answer = await raw("GET", SECRET.path(namespace), headers={"Accept": accept})
    assert answer.status == 406
    assert answer.json()["reason"] == "NotAcceptable"


async def test_first_acceptable_media_type_is_served(raw: Raw, namespace: str) -> None:
    accept = "application/json;as=Frob;v=v1;g=meta.k8s.io,application/json"
    answer = await raw("GET", SECRET.path(namespace), headers={"Accept": accept})
    assert answer.json()["kind"] == "SecretList"


async def test_large_responses_are_compressed_on_request(raw: Raw, client: Client, namespace: str) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={"k": "v" * 300_000}), namespace)
    path = CONFIG_MAP.path(namespace, "a")
    answer = await raw("GET", path, headers={"Accept-Encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    assert len(answer.body) < 100_000
    assert b'"name":"a"' in gzip.decompress(answer.body)
    plain = await raw("GET", path)
    assert "content-encoding" not in plain.headers
    assert plain.json() == created


async def test_pretty_indents_the_response(raw: Raw, client: Client, namespace: str) -> None:
    await client.create(SECRET, new(SECRET, "a"), namespace)
    answer = await raw("GET", SECRET.path(namespace, "a") + "?pretty=true")
    assert answer.body.startswith(b'{\n  "kind": "Secret",\n')


async def test_responses_have_an_audit_id_and_are_not_cached(raw: Raw, namespace: str) -> None:
    """An audit id to quote in a complaint, and no caching of what may change at any moment."""
    answer = await raw("GET", SECRET.path(namespace))
    assert answer.headers["audit-id"]
    assert answer.headers["cache-control"] == "no-cache, private"
