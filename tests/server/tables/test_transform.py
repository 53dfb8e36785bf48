from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import pytest

from sandpool.api.kinds import CONFIG_MAP
from sandpool.api.resource import Object
from sandpool.kube.errors import BadRequest, NotAcceptable
from sandpool.server.request.negotiation import Negotiated
from sandpool.server.resources import Resource
from sandpool.server.tables import transform_event, transform_response

Served = Callable[..., Resource]

OBJECT: Object = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "one", "resourceVersion": "5"}}
LIST: Object = {"kind": "ConfigMapList", "metadata": {"resourceVersion": "7", "continue": "c"}, "items": [OBJECT]}
STATUS: Object = {"kind": "Status", "metadata": {}, "status": "Success"}
PARTIAL: Object = {
    "kind": "PartialObjectMetadata",
    "apiVersion": "meta.k8s.io/v1",
    "metadata": OBJECT["metadata"],
}


def form(kind: str, version: str = "v1") -> Negotiated:
    return Negotiated(as_=kind, group="meta.k8s.io", version=version)


def test_plain_responses_and_statuses_are_unchanged(served: Served, now: datetime) -> None:
    assert transform_response(Negotiated(), served(CONFIG_MAP), OBJECT, now=now) is OBJECT
    assert transform_response(form("Table"), served(CONFIG_MAP), STATUS, now=now) is STATUS
    assert transform_event(form("Table"), served(CONFIG_MAP), STATUS, now=now) is STATUS
    assert transform_event(Negotiated(), served(CONFIG_MAP), OBJECT, now=now) is OBJECT


def test_table_is_made_of_a_list_or_of_one_object(served: Served, now: datetime) -> None:
    listed = transform_response(form("Table"), served(CONFIG_MAP), LIST, now=now)
    assert listed["metadata"] == {"resourceVersion": "7", "continue": "c"}
    one = transform_response(form("Table", "v1beta1"), served(CONFIG_MAP), OBJECT, now=now, include_object="None")
    assert (one["apiVersion"], one["metadata"]) == ("meta.k8s.io/v1beta1", {"resourceVersion": "5"})
    assert one["rows"][0]["object"] is None


def test_partial_metadata_are_made_of_an_object_and_of_a_list(served: Served, now: datetime) -> None:
    assert transform_response(form("PartialObjectMetadata"), served(CONFIG_MAP), OBJECT, now=now) == PARTIAL
    assert transform_response(form("PartialObjectMetadataList"), served(CONFIG_MAP), LIST, now=now) == {
        "kind": "PartialObjectMetadataList",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": LIST["metadata"],
        "items": [PARTIAL],
    }


@pytest.mark.parametrize(
    ("kind", "answer", "message"),
    [
        ("PartialObjectMetadata", LIST, "you requested PartialObjectMetadata, but the requested object is a list"),
        ("PartialObjectMetadataList", OBJECT, "PartialObjectMetadataList, but the requested object is not a list"),
    ],
)
def test_partial_metadata_of_the_wrong_cardinality_are_rejected(
    served: Served, now: datetime, kind: str, answer: Object, message: str
) -> None:
    with pytest.raises(NotAcceptable, match=message):
        transform_response(form(kind), served(CONFIG_MAP), answer, now=now)


def test_watch_events_become_tables(served: Served, now: datetime) -> None:
    first = transform_event(form("Table"), served(CONFIG_MAP), OBJECT, now=now, first=True)
    later = transform_event(form("Table"), served(CONFIG_MAP), OBJECT, now=now)
    assert first["columnDefinitions"] is not None
    assert later["columnDefinitions"] is None
    assert first["rows"] == later["rows"]
    assert later["metadata"] == {"resourceVersion": "5"}
    assert transform_event(form("PartialObjectMetadata"), served(CONFIG_MAP), OBJECT, now=now) == PARTIAL


def test_invalid_include_object_is_rejected(served: Served, now: datetime) -> None:
    with pytest.raises(BadRequest, match=r'includeObject: Invalid value: "Nope": must be'):
        transform_response(form("Table"), served(CONFIG_MAP), OBJECT, now=now, include_object="Nope")
