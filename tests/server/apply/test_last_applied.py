from __future__ import annotations

import json
from typing import Any

import pytest

from sandpool.api.kinds import CONFIG_MAP
from sandpool.api.resource import Object
from sandpool.api.schema.core import shape_of
from sandpool.kube.errors import Conflict
from sandpool.server.apply import apply, track_update
from sandpool.server.apply.last_applied import LAST_APPLIED

SHAPE = shape_of(CONFIG_MAP)
NOW = "2030-01-01T00:00:01Z"


def config(data: Object, **annotations: str) -> Object:
    metadata: Object = {"name": "c", "annotations": annotations} if annotations else {"name": "c"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def written_by_kubectl(data: Object, last: Any) -> Object:
    """Return the object that ``kubectl apply`` without --server-side leaves."""
    text = last if isinstance(last, str) else json.dumps(last)
    return track_update(
        None,
        config(data, **{LAST_APPLIED: text}),
        shape=SHAPE,
        manager="kubectl-client-side-apply",
        subresource="",
        api_version="v1",
        now=NOW,
        reset=None,
    )


def put(live: Object, applied: Object, manager: str = "kubectl", force: bool = False) -> Object:
    return apply(live, applied, shape=SHAPE, manager=manager, force=force, subresource="", now=NOW, reset=None)


def test_kubectl_takes_over_its_client_side_fields() -> None:
    live = written_by_kubectl({"a": "1", "b": "2"}, config({"a": "1", "b": "2"}))
    made = put(live, config({"a": "new"}))
    assert made["data"] == {"a": "new", "b": "2"}
    with pytest.raises(Conflict):
        put(live, config({"a": "new"}), manager="another")


@pytest.mark.parametrize(
    "last",
    [
        config({}),
        config({"a": "other"}),
        {**config({"a": "1"}), "apiVersion": "v2"},
        {**config({"a": "1"}), "kind": ""},
        {**config({"a": "1"}), "unknown": 1},
        "no json",
        "[]",
    ],
)
def test_changed_or_foreign_fields_still_conflict(last: Any) -> None:
    with pytest.raises(Conflict, match="kubectl-client-side-apply"):
        put(written_by_kubectl({"a": "1"}, last), config({"a": "new"}))


def test_only_remaining_conflicts_are_reported() -> None:
    live = written_by_kubectl({"a": "1", "b": "2"}, config({"a": "1"}))
    with pytest.raises(Conflict) as refused:
        put(live, config({"a": "new", "b": "new"}))
    assert [cause["field"] for cause in refused.value.details["causes"]] == [".data.b"]


def test_last_applied_annotation_is_updated() -> None:
    live = written_by_kubectl({"a": "1"}, config({"a": "1"}))
    made = put(live, config({"a": "<new>"}, **{LAST_APPLIED: "whatever", "other": "x"}), force=True)
    assert made["metadata"]["annotations"][LAST_APPLIED] == (
        '{"apiVersion":"v1","data":{"a":"\\u003cnew\\u003e"},"kind":"ConfigMap",'
        '"metadata":{"annotations":{"other":"x"},"name":"c"}}\n'
    )
    other = put(live, config({"b": "2"}), manager="another")
    assert other["metadata"]["annotations"] == live["metadata"]["annotations"]


def test_oversized_last_applied_annotation_is_dropped() -> None:
    live = written_by_kubectl({"a": "1"}, config({"a": "1"}))
    made = put(live, config({"b": "x" * 300_000}))
    assert LAST_APPLIED not in made["metadata"]["annotations"]
