"""The verbs of our own four kinds: watches, pages, dry runs, patches, forms of responses and discovery.

Other tests hold all of this for built-in and for custom kinds. Ours are the only ones for which kube-apiserver may pass
requests on to our server, so each response is the work of two.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from sandpool.api.kinds import SANDBOX, SANDBOX_CLAIM, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL, SANDPOOL
from sandpool.api.resource import Object, ResourceType, SharedObject
from sandpool.kube.client import ApplyPatch, Client, JsonPatch, MergePatch
from sandpool.kube.errors import AlreadyExists, ApiError, BadRequest, Conflict, Expired, Invalid, NotFound
from sandpool.kube.transport import WatchEvent
from sandpool.testing.objects import new
from sandpool.testing.waiting import Listener, drain, take, until
from tests.support.api_access import ApiEndpoint, Raw
from tests.support.extra_verbs import delete_collection, replace

pytestmark = pytest.mark.usefixtures("sandbox_kinds")

PARTIAL = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
PARTIAL_LIST = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
END = "k8s.io/initial-events-end"
POD_TEMPLATE: Object = {"spec": {"containers": [{"name": "main", "image": "example.com/image:1"}]}}
SPECS: dict[ResourceType, Object] = {
    SANDBOX: {"podTemplate": POD_TEMPLATE},
    SANDBOX_TEMPLATE: {"podTemplate": POD_TEMPLATE},
    SANDBOX_WARM_POOL: {"sandboxTemplateRef": {"name": "t"}},
    SANDBOX_CLAIM: {"warmPoolRef": {"name": "p"}},
}
every_kind = pytest.mark.parametrize("type", SANDPOOL, ids=str)


async def create(
    client: Client, namespace: str, type: ResourceType, name: str = "a", *, dry_run: bool = False, **metadata: Any
) -> SharedObject:
    return await client.create(type, new(type, name, metadata=metadata, spec=SPECS[type]), namespace, dry_run=dry_run)


async def fill(client: Client, namespace: str, type: ResourceType, names: str) -> None:
    for number, name in enumerate(names):
        await create(client, namespace, type, name, labels={"odd": str(number % 2)})


async def now(client: Client, namespace: str, type: ResourceType) -> str:
    return version(await client.list(type, namespace))


def version(object: SharedObject) -> str:
    found: str = object["metadata"]["resourceVersion"]
    return found


def names(listed: SharedObject) -> list[str]:
    return [item["metadata"]["name"] for item in listed["items"]]


def token(listed: SharedObject) -> str | None:
    return listed["metadata"].get("continue") or None


def seen(events: list[WatchEvent]) -> list[tuple[str, str]]:
    return [(event.type, event.object["metadata"]["name"]) for event in events]


def labelled(value: str | None) -> MergePatch:
    return MergePatch({"metadata": {"labels": {"l": value}}})


# Watches


@every_kind
async def test_watch_replays_events_after_its_version(client: Client, namespace: str, type: ResourceType) -> None:
    start = await now(client, namespace, type)
    created = await create(client, namespace, type)
    patched = await client.patch(type, "a", labelled("x"), namespace)
    await client.delete(type, "a", namespace)
    events = await take(client.watch(type, namespace, resource_version=start), 3)
    assert seen(events) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
    assert [event.object for event in events[:2]] == [created, patched]
    assert int(version(events[2].object)) > int(version(patched))


async def test_watch_begins_with_existing_objects_and_continues(client: Client, namespace: str) -> None:
    await fill(client, namespace, SANDBOX_CLAIM, "ab")
    async with Listener(client.watch(SANDBOX_CLAIM, namespace)) as listener:
        initial = [await listener.next() for _ in range(2)]
        assert sorted(seen(initial)) == [("ADDED", "a"), ("ADDED", "b")]
        for name in "cde":
            await create(client, namespace, SANDBOX_CLAIM, name)
            assert seen([await listener.next()]) == [("ADDED", name)]
        status = MergePatch({"status": {"sandbox": {"name": "s"}}})
        patched = await client.patch(SANDBOX_CLAIM, "c", status, namespace, subresource="status")
        event = await listener.next()
        assert (event.type, event.object) == ("MODIFIED", patched)


async def test_object_entering_or_leaving_a_selector_is_added_or_deleted(client: Client, namespace: str) -> None:
    start = await now(client, namespace, SANDBOX)
    await create(client, namespace, SANDBOX, labels={"l": "no"})
    entered = await client.patch(SANDBOX, "a", labelled("yes"), namespace)
    left = await client.patch(SANDBOX, "a", labelled(None), namespace)
    await create(client, namespace, SANDBOX, "b")
    events = await take(client.watch(SANDBOX, namespace, resource_version=start, label_selector="l=yes"), 2)
    assert seen(events) == [("ADDED", "a"), ("DELETED", "a")]
    assert events[0].object == entered
    assert (events[1].object["metadata"]["labels"], version(events[1].object)) == ({"l": "yes"}, version(left))
    one = client.watch(SANDBOX, namespace, resource_version=start, field_selector="metadata.name=b")
    assert seen(await take(one, 1)) == [("ADDED", "b")]


async def test_initial_events_end_with_a_bookmark_from_which_a_watch_resumes(client: Client, namespace: str) -> None:
    await fill(client, namespace, SANDBOX, "ab")
    watch = client.watch(SANDBOX, namespace, send_initial_events=True, resource_version_match="NotOlderThan")
    async with Listener(watch, bookmarks=True) as listener:
        assert sorted(seen([await listener.next() for _ in range(2)])) == [("ADDED", "a"), ("ADDED", "b")]
        end = await listener.next()
    assert (end.type, end.object["kind"], end.object["apiVersion"]) == ("BOOKMARK", "Sandbox", SANDBOX.api_version)
    assert end.object["metadata"]["annotations"] == {END: "true"}
    await create(client, namespace, SANDBOX, "c")
    assert seen(await take(client.watch(SANDBOX, namespace, resource_version=version(end.object)), 1)) == [
        ("ADDED", "c")
    ]


async def test_watch_from_an_old_version_is_expired(api: ApiEndpoint, raw: Raw, client: Client, namespace: str) -> None:
    await create(client, namespace, SANDBOX_CLAIM)
    await api.forget_history()
    with pytest.raises(Expired) as refused:
        await drain(client.watch(SANDBOX_CLAIM, namespace, resource_version="1", timeout_seconds=5))
    assert (refused.value.code, refused.value.reason) == (410, "Expired")
    assert refused.value.message.startswith("too old resource version: 1 (")
    answer = await raw("GET", SANDBOX_CLAIM.path(namespace) + "?watch=true&resourceVersion=1&timeoutSeconds=5")
    [line] = answer.lines()
    assert (answer.status, line["type"], line["object"]["code"]) == (200, "ERROR", 410)


async def test_watch_ends_after_its_timeout(client: Client, namespace: str) -> None:
    started = asyncio.get_running_loop().time()
    events = await drain(client.watch(SANDBOX, namespace, timeout_seconds=1))
    assert [event.type for event in events] in ([], ["BOOKMARK"])
    assert asyncio.get_running_loop().time() - started >= 0.9


async def test_invalid_version_and_selector_of_a_watch_are_rejected(client: Client, namespace: str) -> None:
    with pytest.raises(ApiError, match=r"resourceVersion: Invalid value"):
        await drain(client.watch(SANDBOX, namespace, resource_version="x", timeout_seconds=1))
    with pytest.raises(BadRequest):
        await drain(client.watch(SANDBOX, namespace, label_selector="a b", timeout_seconds=1))


# Lists


async def test_pages_show_the_version_of_the_first(client: Client, namespace: str) -> None:
    await fill(client, namespace, SANDBOX_CLAIM, "abcdefg")
    first = await client.list(SANDBOX_CLAIM, namespace, limit=3)
    assert (names(first), first["metadata"]["remainingItemCount"]) == (["a", "b", "c"], 4)
    await client.delete(SANDBOX_CLAIM, "e", namespace)
    await create(client, namespace, SANDBOX_CLAIM, "dd")
    await client.patch(SANDBOX_CLAIM, "d", labelled("new"), namespace)
    second = await client.list(SANDBOX_CLAIM, namespace, limit=3, continue_token=token(first))
    assert (names(second), second["metadata"]["remainingItemCount"]) == (["d", "e", "f"], 1)
    assert "l" not in second["items"][0]["metadata"]["labels"]
    third = await client.list(SANDBOX_CLAIM, namespace, limit=3, continue_token=token(second))
    assert (names(third), token(third)) == (["g"], None)
    assert {version(each) for each in (second, third)} == {version(first)}


async def test_pages_honour_a_selector(client: Client, namespace: str) -> None:
    await fill(client, namespace, SANDBOX_TEMPLATE, "abcdefg")
    first = await client.list(SANDBOX_TEMPLATE, namespace, limit=2, label_selector="odd=1")
    rest = await client.list(SANDBOX_TEMPLATE, namespace, label_selector="odd=1", continue_token=token(first))
    assert (names(first), names(rest)) == (["b", "d"], ["f"])
    assert names(await client.list(SANDBOX_TEMPLATE, namespace, field_selector="metadata.name=c")) == ["c"]


async def test_expired_continue_token_answers_a_new_one(
    api: ApiEndpoint, raw: Raw, client: Client, namespace: str
) -> None:
    await fill(client, namespace, SANDBOX_CLAIM, "abcd")
    first = await client.list(SANDBOX_CLAIM, namespace, limit=2)
    await create(client, namespace, SANDBOX_CLAIM, "z")
    await api.forget_history()
    answer = await raw("GET", SANDBOX_CLAIM.path(namespace) + f"?limit=2&continue={quote(token(first) or '')}")
    status = answer.json()
    assert (answer.status, status["reason"]) == (410, "Expired")
    rest = await client.list(SANDBOX_CLAIM, namespace, continue_token=token(status))
    assert names(rest) == ["c", "d", "z"]


# Writes


@every_kind
async def test_dry_runs_change_nothing_and_send_no_event(client: Client, namespace: str, type: ResourceType) -> None:
    created = await create(client, namespace, type)
    absent = await create(client, namespace, type, "b", dry_run=True)
    assert absent["metadata"]["uid"]
    assert "resourceVersion" not in absent["metadata"]
    with pytest.raises(AlreadyExists):
        await create(client, namespace, type, dry_run=True)
    patched = await client.patch(type, "a", labelled("x"), namespace, dry_run=True)
    assert patched["metadata"]["labels"] == {"l": "x"}
    await replace(client, type, {**created, "metadata": {**created["metadata"], "labels": {}}}, namespace, dryRun="All")
    await client.delete(type, "a", namespace, dry_run=True)
    await delete_collection(client, type, namespace, dryRun="All")
    assert await client.get(type, "a", namespace) == created
    await create(client, namespace, type, "end")
    [event] = await take(client.watch(type, namespace, resource_version=version(created)), 1)
    assert seen([event]) == [("ADDED", "end")]


@every_kind
async def test_delete_collection_deletes_what_is_selected(client: Client, namespace: str, type: ResourceType) -> None:
    await fill(client, namespace, type, "abc")
    await client.patch(type, "a", MergePatch({"metadata": {"finalizers": ["example.com/hold"]}}), namespace)
    answer = await delete_collection(client, type, namespace, labelSelector="odd=0")
    assert (answer["kind"], sorted(names(answer))) == (type.kind + "List", ["a", "c"])
    left = await client.list(type, namespace)
    assert names(left) == ["a", "b"]
    assert "deletionTimestamp" in left["items"][0]["metadata"]
    with pytest.raises(Conflict):
        await delete_collection(client, type, namespace, options={"preconditions": {"uid": "other"}})
    await client.patch(type, "a", MergePatch({"metadata": {"finalizers": None}}), namespace)
    await delete_collection(client, type, namespace)
    assert names(await client.list(type, namespace)) == []


async def test_outdated_writes_conflict(client: Client, namespace: str) -> None:
    created = await create(client, namespace, SANDBOX_WARM_POOL)
    current = await client.patch(SANDBOX_WARM_POOL, "a", MergePatch({"spec": {"replicas": 2}}), namespace)
    with pytest.raises(Conflict):
        await replace(client, SANDBOX_WARM_POOL, created, namespace)
    outdated = {"metadata": {"resourceVersion": version(created)}, "spec": {"replicas": 3}}
    with pytest.raises(Conflict):
        await client.patch(SANDBOX_WARM_POOL, "a", MergePatch(outdated), namespace)
    with pytest.raises(Conflict):
        await client.delete(SANDBOX_WARM_POOL, "a", namespace, uid="other")
    with pytest.raises(Conflict):
        await client.delete(SANDBOX_WARM_POOL, "a", namespace, resource_version=version(created))
    assert await client.get(SANDBOX_WARM_POOL, "a", namespace) == current
    metadata = {key: value for key, value in current["metadata"].items() if key != "resourceVersion"}
    with pytest.raises(Invalid, match="must be specified for an update"):
        await replace(client, SANDBOX_WARM_POOL, {**current, "metadata": metadata}, namespace)
    updated = await replace(
        client, SANDBOX_WARM_POOL, {**current, "spec": {**current["spec"], "replicas": 4}}, namespace
    )
    assert (updated["spec"]["replicas"], updated["metadata"]["generation"]) == (4, 3)


async def test_one_of_many_concurrent_writers_wins(client: Client, namespace: str) -> None:
    made = await asyncio.gather(*(create(client, namespace, SANDBOX_CLAIM) for _ in range(10)), return_exceptions=True)
    assert sorted(isinstance(each, AlreadyExists) for each in made) == [False, *[True] * 9]
    [created] = (each for each in made if not isinstance(each, BaseException))
    body = {"metadata": {"resourceVersion": version(created), "labels": {"l": "x"}}}
    written = await asyncio.gather(
        *(
            client.patch(
                SANDBOX_CLAIM, "a", MergePatch(body | {"spec": {"env": [{"name": f"N{n}", "value": "v"}]}}), namespace
            )
            for n in range(10)
        ),
        return_exceptions=True,
    )
    assert sum(isinstance(each, Conflict) for each in written) == 9


async def test_appliers_conflict_over_a_field(client: Client, namespace: str) -> None:
    def applied(replicas: int) -> ApplyPatch:
        return ApplyPatch(new(SANDBOX_WARM_POOL, "a", spec={**SPECS[SANDBOX_WARM_POOL], "replicas": replicas}))

    await client.patch(SANDBOX_WARM_POOL, "a", applied(1), namespace, field_manager="one")
    with pytest.raises(Conflict) as refused:
        await client.patch(SANDBOX_WARM_POOL, "a", applied(2), namespace, field_manager="two")
    assert refused.value.message == 'Apply failed with 1 conflict: conflict with "one": .spec.replicas'
    forced = await client.patch(SANDBOX_WARM_POOL, "a", applied(2), namespace, field_manager="two", force=True)
    owners = {each["manager"]: each["fieldsV1"] for each in forced["metadata"]["managedFields"]}
    assert "f:replicas" in owners["two"]["f:spec"]
    assert "f:replicas" not in owners["one"]["f:spec"]


async def test_json_patches_are_applied_or_refused_as_a_whole(client: Client, namespace: str) -> None:
    await create(client, namespace, SANDBOX_WARM_POOL)
    raised = [
        {"op": "test", "path": "/spec/replicas", "value": 1},
        {"op": "replace", "path": "/spec/replicas", "value": 7},
    ]
    patched = await client.patch(SANDBOX_WARM_POOL, "a", JsonPatch(raised), namespace)
    assert patched["spec"]["replicas"] == 7
    with pytest.raises(Invalid):
        await client.patch(SANDBOX_WARM_POOL, "a", JsonPatch(raised), namespace)


async def test_generated_names_differ(client: Client, namespace: str) -> None:
    claim = new(SANDBOX_CLAIM, None, metadata={"generateName": "job-"}, spec=SPECS[SANDBOX_CLAIM])
    made = [(await client.create(SANDBOX_CLAIM, claim, namespace))["metadata"]["name"] for _ in range(3)]
    assert len(set(made)) == 3
    assert all(name.startswith("job-") for name in made)


@pytest.mark.parametrize(("level", "status"), [("Strict", 400), ("Warn", 201), ("Ignore", 201)])
async def test_unknown_fields_are_refused_or_warned_of(raw: Raw, namespace: str, level: str, status: int) -> None:
    claim = new(SANDBOX_CLAIM, "a", spec={**SPECS[SANDBOX_CLAIM], "lifecycl": {}})
    answer = await raw(
        "POST",
        SANDBOX_CLAIM.path(namespace) + f"?fieldValidation={level}",
        body=json.dumps(claim).encode(),
        headers={"Content-Type": "application/json"},
    )
    assert answer.status == status, answer.body
    said = 'unknown field "spec.lifecycl"'
    assert (said in answer.json().get("message", ""), any("lifecycl" in each for each in answer.warnings)) == (
        level == "Strict",
        level == "Warn",
    )


@every_kind
async def test_missing_objects_are_not_found(client: Client, namespace: str, type: ResourceType) -> None:
    expected = f'{type.group_resource} "none" not found'
    with pytest.raises(NotFound) as refused:
        await client.get(type, "none", namespace)
    assert refused.value.message == expected
    with pytest.raises(NotFound) as refused:
        await client.patch(type, "none", labelled("x"), namespace)
    assert refused.value.message == expected
    with pytest.raises(NotFound) as refused:
        await client.delete(type, "none", namespace)
    assert refused.value.message == expected


# Forms of responses


@every_kind
async def test_metadata_alone_are_served(raw: Raw, client: Client, namespace: str, type: ResourceType) -> None:
    """The garbage collector of kube-controller-manager reads and watches nothing else."""
    start = await now(client, namespace, type)
    created = await create(client, namespace, type)
    partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": created["metadata"]}
    answer = await raw("GET", type.path(namespace, "a"), headers={"Accept": PARTIAL})
    assert answer.json() == partial
    listed = (await raw("GET", type.path(namespace), headers={"Accept": PARTIAL_LIST})).json()
    assert listed["kind"] == "PartialObjectMetadataList"
    assert [item["metadata"] for item in listed["items"]] == [created["metadata"]]
    assert "spec" not in listed["items"][0]
    target = type.path(namespace) + f"?watch=true&resourceVersion={start}&timeoutSeconds=1"
    answer = await raw("GET", target, headers={"Accept": PARTIAL})
    assert answer.lines() == [{"type": "ADDED", "object": partial}]


async def test_watch_is_served_as_tables(raw: Raw, client: Client, namespace: str) -> None:
    """What ``kubectl get --watch`` asks for: columns come with the first event alone."""
    start = await now(client, namespace, SANDBOX_CLAIM)
    await fill(client, namespace, SANDBOX_CLAIM, "ab")
    target = SANDBOX_CLAIM.path(namespace) + f"?watch=true&resourceVersion={start}&timeoutSeconds=1"
    first, second = (await raw("GET", target, headers={"Accept": TABLE})).lines()
    assert [each["object"]["kind"] for each in (first, second)] == ["Table", "Table"]
    assert [each["object"]["rows"][0]["cells"][0] for each in (first, second)] == ["a", "b"]
    assert [column["name"] for column in first["object"]["columnDefinitions"]][:2] == ["Name", "Ready"]
    assert not second["object"].get("columnDefinitions")


async def test_yaml_and_compressed_responses_are_served(raw: Raw, client: Client, namespace: str) -> None:
    created = await create(client, namespace, SANDBOX_TEMPLATE, annotations={"example.com/note": "v" * 200_000})
    path = SANDBOX_TEMPLATE.path(namespace, "a")
    answer = await raw("GET", path, headers={"Accept": "application/yaml"})
    assert (answer.content_type, yaml.safe_load(answer.body)) == ("application/yaml", created)
    answer = await raw("GET", path, headers={"Accept-Encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    assert json.loads(gzip.decompress(answer.body)) == created
    answer = await raw("GET", path, headers={"Accept": "text/html"})
    assert (answer.status, answer.json()["reason"]) == (406, "NotAcceptable")


# Discovery


async def test_aggregated_discovery_lists_our_groups(raw: Raw) -> None:
    async def listed() -> dict[str, Any] | None:
        """kube-apiserver asks another server for its part every minute, and when that is registered."""
        answer = await raw("GET", "/apis", headers={"Accept": AGGREGATED})
        found = {group["metadata"]["name"]: group for group in answer.json()["items"]}
        return found if {type.group for type in SANDPOOL} <= found.keys() else None

    groups = await until(listed, within=90)
    assert groups is not None
    for type in SANDPOOL:
        [served] = groups[type.group]["versions"]
        assert (served["version"], served["freshness"]) == (type.version, "Current")
        [resource] = [each for each in served["resources"] if each["resource"] == type.plural]
        assert resource["responseKind"] == {"group": type.group, "version": type.version, "kind": type.kind}
        assert (resource["scope"], resource["singularResource"]) == ("Namespaced", type.singular)
        assert sorted(resource["verbs"]) == sorted(type.verbs)
        subresources = {each["subresource"] for each in resource.get("subresources") or ()}
        assert subresources == type.subresources & {"status", "scale"}


async def test_plain_discovery_lists_our_groups(raw: Raw) -> None:
    listed = {group["name"]: group for group in (await raw("GET", "/apis")).json()["groups"]}
    for type in SANDPOOL:
        versions = [{"groupVersion": type.api_version, "version": type.version}]
        assert listed[type.group]["versions"] == versions
        group = (await raw("GET", f"/apis/{type.group}")).json()
        assert (group["kind"], group["versions"], group["preferredVersion"]) == ("APIGroup", versions, versions[0])
