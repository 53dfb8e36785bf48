"""Events live in two API groups at once; each shows what the other wrote."""

from __future__ import annotations

import pytest

from sandpool.api.kinds import CORE_EVENT, EVENT
from sandpool.api.resource import Object
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import Invalid, NotFound
from sandpool.testing.objects import new
from sandpool.testing.waiting import take


def core(namespace: str) -> Object:
    return new(
        CORE_EVENT,
        "e",
        involvedObject={"apiVersion": "v1", "kind": "Pod", "name": "p", "namespace": namespace, "uid": "u"},
        reason="Scheduled",
        message="Placed on n1",
        type="Normal",
        count=2,
        firstTimestamp="2026-01-01T00:00:00Z",
        lastTimestamp="2026-01-01T00:01:00Z",
        source={"component": "scheduler", "host": "h"},
    )


def modern(namespace: str) -> Object:
    return new(
        EVENT,
        "e",
        eventTime="2026-01-01T00:00:00.123456Z",
        reportingController="example.com/controller",
        reportingInstance="one",
        action="Binding",
        reason="Scheduled",
        note="Placed on n1",
        type="Normal",
        regarding={"apiVersion": "v1", "kind": "Pod", "name": "p", "namespace": namespace, "uid": "u"},
    )


async def test_core_event_is_served_in_events_v1(client: Client, namespace: str) -> None:
    created = await client.create(CORE_EVENT, core(namespace), namespace)
    seen = await client.get(EVENT, "e", namespace)
    assert (seen["apiVersion"], seen["kind"]) == ("events.k8s.io/v1", "Event")
    assert seen["metadata"]["uid"] == created["metadata"]["uid"]
    assert seen["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]
    assert seen["regarding"] == created["involvedObject"]
    assert (seen["note"], seen["reason"], seen["type"]) == ("Placed on n1", "Scheduled", "Normal")
    assert seen["deprecatedCount"] == 2
    assert seen["deprecatedFirstTimestamp"] == "2026-01-01T00:00:00Z"
    assert seen["deprecatedLastTimestamp"] == "2026-01-01T00:01:00Z"
    assert seen["deprecatedSource"] == {"component": "scheduler", "host": "h"}
    assert not {"involvedObject", "message", "count", "source", "firstTimestamp"} & seen.keys()


async def test_events_v1_event_is_served_in_core(client: Client, namespace: str) -> None:
    created = await client.create(EVENT, modern(namespace), namespace)
    assert created["eventTime"] == "2026-01-01T00:00:00.123456Z"
    seen = await client.get(CORE_EVENT, "e", namespace)
    assert (seen["apiVersion"], seen["kind"]) == ("v1", "Event")
    assert seen["involvedObject"] == created["regarding"]
    assert (seen["message"], seen["reason"], seen["action"]) == ("Placed on n1", "Scheduled", "Binding")
    assert seen["reportingComponent"] == "example.com/controller"
    assert seen["reportingInstance"] == "one"
    assert not {"regarding", "note", "reportingController"} & seen.keys()


async def test_both_groups_list_watch_and_delete_the_same_events(client: Client, namespace: str) -> None:
    start = (await client.list(EVENT, namespace))["metadata"]["resourceVersion"]
    await client.create(CORE_EVENT, core(namespace), namespace)
    assert [item["note"] for item in (await client.list(EVENT, namespace))["items"]] == ["Placed on n1"]
    await client.delete(EVENT, "e", namespace)
    with pytest.raises(NotFound, match=r'events "e" not found'):
        await client.get(CORE_EVENT, "e", namespace)
    for type in (CORE_EVENT, EVENT):
        events = await take(client.watch(type, namespace, resource_version=start), 2)
        assert [(event.type, event.object["apiVersion"]) for event in events] == [
            ("ADDED", type.api_version),
            ("DELETED", type.api_version),
        ]


async def test_selectors_use_the_field_names_of_their_group(client: Client, namespace: str) -> None:
    await client.create(CORE_EVENT, core(namespace), namespace)
    for type, selector in ((CORE_EVENT, "involvedObject.name=p"), (EVENT, "regarding.name=p")):
        assert len((await client.list(type, namespace, field_selector=selector))["items"]) == 1


async def test_patch_of_the_series_counts_an_event(client: Client, namespace: str) -> None:
    """How a recorder counts: the first event is created, later ones patch its series."""
    await client.create(EVENT, modern(namespace), namespace)
    series = {"count": 2, "lastObservedTime": "2026-01-01T00:02:00.000000Z"}
    patched = await client.patch(EVENT, "e", MergePatch({"series": series}), namespace)
    assert patched["series"] == series
    assert (await client.get(CORE_EVENT, "e", namespace))["series"] == series


async def test_namespace_of_the_event_must_match_its_object(client: Client, namespace: str) -> None:
    wanted = core("elsewhere")
    with pytest.raises(Invalid, match=r"involvedObject.namespace: Invalid value"):
        await client.create(CORE_EVENT, wanted, namespace)


@pytest.mark.parametrize("missing", ["reportingController", "reportingInstance", "action", "reason"])
async def test_incomplete_events_v1_events_are_rejected(client: Client, namespace: str, missing: str) -> None:
    wanted = modern(namespace)
    del wanted[missing]
    with pytest.raises(Invalid) as refused:
        await client.create(EVENT, wanted, namespace)
    assert f"{missing}: Required value" in refused.value.message


async def test_core_events_need_only_an_object(client: Client, namespace: str) -> None:
    wanted = new(CORE_EVENT, "e", involvedObject={"namespace": namespace})
    created = await client.create(CORE_EVENT, wanted, namespace)
    assert created["eventTime"] is None
    assert (created["firstTimestamp"], created["lastTimestamp"]) == (None, None)
    assert (created["source"], created["reportingComponent"], created["reportingInstance"]) == ({}, "", "")
