from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from sandpool.api.columns import Column
from sandpool.api.kinds import BUILT_IN, CONFIG_MAP, DEPLOYMENT, ROLE
from sandpool.api.resource import Object, ResourceType
from sandpool.server.resources import Resource
from sandpool.server.tables import table

Served = Callable[..., Resource]

WIDGET = ResourceType("example.com", "v1", "Widget", "widgets")


def config_map(name: str) -> Object:
    metadata = {"name": name, "creationTimestamp": "2026-11-16T07:50:00Z"}
    return {"kind": "ConfigMap", "metadata": metadata, "data": {"a": "b"}}


def test_list_becomes_a_table_with_its_metadata(served: Served, now: datetime) -> None:
    made = table(
        served(CONFIG_MAP),
        [config_map("one")],
        now=now,
        resource_version="7",
        continue_token="more",
        remaining_item_count=14,
    )
    assert made == {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": "7", "continue": "more", "remainingItemCount": 14},
        "columnDefinitions": [
            {"name": "Name", "type": "string", "format": "name", "description": "", "priority": 0},
            {"name": "Data", "type": "string", "format": "", "description": "", "priority": 0},
            {"name": "Age", "type": "string", "format": "", "description": "", "priority": 0},
        ],
        "rows": [
            {
                "cells": ["one", 1, "10m"],
                "object": {
                    "kind": "PartialObjectMetadata",
                    "apiVersion": "meta.k8s.io/v1",
                    "metadata": config_map("one")["metadata"],
                },
            }
        ],
    }


def test_rows_carry_the_requested_part_of_the_object(served: Served, now: datetime) -> None:
    obj = config_map("one")
    resource = served(CONFIG_MAP)
    assert table(resource, [obj], now=now, include_object="Object")["rows"][0]["object"] is obj
    assert table(resource, [obj], now=now, include_object="None")["rows"][0]["object"] is None


def test_v1beta1_table_has_v1beta1_metadata(served: Served, now: datetime) -> None:
    made = table(served(CONFIG_MAP), [config_map("one")], now=now, version="v1beta1")
    assert made["apiVersion"] == made["rows"][0]["object"]["apiVersion"] == "meta.k8s.io/v1beta1"


def test_empty_list_has_headers(served: Served, now: datetime) -> None:
    made = table(served(CONFIG_MAP), [], now=now)
    assert (len(made["columnDefinitions"]), made["rows"]) == (3, [])


def test_headers_can_be_omitted(served: Served, now: datetime) -> None:
    assert table(served(CONFIG_MAP), [], now=now, headers=False)["columnDefinitions"] is None


def test_kind_without_columns_has_name_and_creation_time(served: Served, now: datetime) -> None:
    obj = {"metadata": {"name": "r", "creationTimestamp": "2026-11-16T07:50:00Z"}}
    made = table(served(ROLE), [obj], now=now)
    assert [column["name"] for column in made["columnDefinitions"]] == ["Name", "Created At"]
    assert made["rows"][0]["cells"] == ["r", "2026-11-16T07:50:00Z"]


def test_custom_resources_have_the_columns_of_their_definition(served: Served, now: datetime) -> None:
    resource = served(WIDGET, custom=True, columns=(Column("Size", "integer", ".spec.size"),))
    made = table(resource, [{"metadata": {"name": "w"}, "spec": {"size": 2}}], now=now)
    assert [column["name"] for column in made["columnDefinitions"]] == ["Name", "Size"]
    assert made["rows"][0]["cells"] == ["w", 2]


def test_scale_is_printed_for_any_kind(served: Served, now: datetime) -> None:
    scale = {"kind": "Scale", "metadata": {"name": "d"}, "spec": {"replicas": 3}, "status": {"replicas": 2}}
    made = table(served(DEPLOYMENT), [scale], now=now)
    assert [column["name"] for column in made["columnDefinitions"]] == ["Name", "Desired", "Available", "Age"]
    assert made["rows"][0]["cells"] == ["d", 3, 2, "<unknown>"]


def test_every_kind_prints_an_almost_empty_object(served: Served, now: datetime) -> None:
    """The bookmark of a watch has nothing but a resourceVersion, and is printed too."""
    bookmark: Object = {"metadata": {"resourceVersion": "9"}}
    for type in BUILT_IN:
        made = table(served(type), [bookmark], now=now)
        assert len(made["rows"][0]["cells"]) == len(made["columnDefinitions"]), type
