from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandpool.api.kinds import CONFIG_MAP, DEPLOYMENT
from sandpool.api.resource import Object
from sandpool.api.schema.core import shape_of
from sandpool.api.schema.shape import Shape
from sandpool.kube.errors import ApiError, BadRequest, Conflict
from sandpool.server.apply import (
    RESET_ALL_BUT_STATUS,
    RESET_STATUS,
    FieldSet,
    apply,
    check_applied_kind,
    track_update,
)

T1, T2, T3 = (f"2030-01-01T00:00:0{second}Z" for second in range(1, 4))
VERSION = "example.com/v1"


def config(spec: Object | None = None, **parts: Any) -> Object:
    made = {"apiVersion": VERSION, "kind": "Widget", "metadata": {"name": "w"}, **parts}
    return made if spec is None else {**made, "spec": spec}


def put(
    live: Object | None,
    applied: Object,
    shape: Shape,
    manager: str = "ann",
    *,
    force: bool = False,
    subresource: str = "",
    now: str = T1,
    reset: FieldSet | None = None,
) -> Object:
    return apply(
        live,
        applied,
        shape=shape,
        manager=manager,
        force=force,
        subresource=subresource,
        now=now,
        reset=reset,
    )


def update(old: Object | None, new: Object, shape: Shape, manager: str = "updater", now: str = T1) -> Object:
    return track_update(
        old, new, shape=shape, manager=manager, subresource="", api_version=VERSION, now=now, reset=None
    )


def owners(object: Object) -> dict[tuple[str, str], Any]:
    return {(e["manager"], e["operation"]): e["fieldsV1"] for e in object["metadata"].get("managedFields", [])}


def test_apply_creates_the_object(shape: Shape) -> None:
    made = put(None, config({"size": 1, "limits": {"a": "1"}, "inner": {}}), shape)
    assert made["spec"] == {"size": 1, "limits": {"a": "1"}, "inner": {}}
    assert made["metadata"]["managedFields"] == [
        {
            "manager": "ann",
            "operation": "Apply",
            "apiVersion": VERSION,
            "time": T1,
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {"f:inner": {}, "f:limits": {"f:a": {}}, "f:size": {}}},
        }
    ]


def test_new_built_in_object_has_its_structs() -> None:
    applied = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {"replicas": 1}}
    made = put(None, applied, shape_of(DEPLOYMENT), reset=RESET_STATUS)
    assert made["spec"]["template"] == {"metadata": {}, "spec": {}}
    assert made["status"] == {}
    assert owners(made) == {("ann", "Apply"): {"f:spec": {"f:replicas": {}}}}


def test_fields_left_out_are_removed(shape: Shape) -> None:
    made = put(None, config({"size": 1, "limits": {"a": "1", "b": "2"}, "parts": [{"name": "a"}]}), shape)
    less = put(made, config({"limits": {"b": "2"}}), shape, now=T2)
    assert less["spec"] == {"limits": {"b": "2"}}
    assert owners(less) == {("ann", "Apply"): {"f:spec": {"f:limits": {"f:b": {}}}}}
    assert less["metadata"]["managedFields"][0]["time"] == T2


def test_fields_left_out_stay_if_others_own_them(shape: Shape) -> None:
    made = put(None, config({"size": 1, "color": "red"}), shape)
    both = put(made, config({"size": 1}), shape, "bob", now=T2)
    left = put(both, config({"color": "red"}), shape, now=T3)
    assert left["spec"] == {"size": 1, "color": "red"}
    assert owners(left) == {("ann", "Apply"): {"f:spec": {"f:color": {}}}, ("bob", "Apply"): {"f:spec": {"f:size": {}}}}


def test_defaults_are_removed_with_the_item_they_belong_to(shape: Shape) -> None:
    made = put(None, config({"parts": [{"name": "a"}], "size": 1}), shape)
    made["spec"]["parts"][0]["weight"] = 7
    made["spec"]["color"] = "default"
    left = put(made, config({"size": 1}), shape)
    assert left["spec"] == {"size": 1, "color": "default"}


def test_equal_values_are_shared_without_conflict(shape: Shape) -> None:
    made = put(None, config({"size": 1}), shape)
    shared = put(made, config({"size": 1}), shape, "bob", now=T2)
    assert owners(shared)["ann", "Apply"] == owners(shared)["bob", "Apply"] == {"f:spec": {"f:size": {}}}
    # A write that changes nothing has no time.
    assert [each.get("time") for each in shared["metadata"]["managedFields"]] == [None, T1]


def test_different_values_conflict(shape: Shape) -> None:
    made = update(put(None, config({"size": 1}), shape), config({"size": 2}), shape)
    with pytest.raises(Conflict) as refused:
        put(made, config({"size": 3}), shape, "bob")
    status = refused.value.status()
    assert status["code"] == 409
    assert status["reason"] == "Conflict"
    assert status["message"] == 'Apply failed with 1 conflict: conflict with "updater" using example.com/v1: .spec.size'
    assert status["details"] == {
        "causes": [
            {
                "reason": "FieldManagerConflict",
                "message": 'conflict with "updater" using example.com/v1',
                "field": ".spec.size",
            }
        ]
    }


def test_several_conflicts_are_listed(shape: Shape) -> None:
    made = put(None, config({"size": 1, "parts": [{"name": "a", "weight": 1}]}), shape)
    made = put(made, config({"size": 1}), shape, "bob", subresource="scale")
    with pytest.raises(Conflict) as refused:
        put(made, config({"size": 2, "parts": [{"name": "a", "weight": 2}]}), shape, "cid")
    assert refused.value.message == (
        'Apply failed with 3 conflicts: conflicts with "ann":\n- .spec.size\n- .spec.parts[name="a",slot=1].weight\n'
        'conflicts with "bob" with subresource "scale":\n- .spec.size'
    )
    assert len(refused.value.details["causes"]) == 3


def test_force_takes_ownership_of_the_applied_fields(shape: Shape) -> None:
    made = put(None, config({"size": 1, "color": "red"}), shape)
    forced = put(made, config({"size": 2}), shape, "bob", force=True, now=T2)
    assert forced["spec"] == {"size": 2, "color": "red"}
    assert owners(forced) == {
        ("ann", "Apply"): {"f:spec": {"f:color": {}}},
        ("bob", "Apply"): {"f:spec": {"f:size": {}}},
    }


def test_apply_conflicts_with_an_update_of_the_same_manager(shape: Shape) -> None:
    made = update(None, config({"size": 1}), shape, "ann")
    with pytest.raises(Conflict, match=r'"ann" using example\.com/v1'):
        put(made, config({"size": 2}), shape, "ann")


def test_applying_again_changes_nothing(shape: Shape) -> None:
    made = put(None, config({"size": 1, "tags": ["a"], "parts": [{"name": "a"}]}), shape)
    assert put(made, config({"size": 1, "tags": ["a"], "parts": [{"name": "a"}]}), shape, now=T2) is made


def test_releasing_a_shared_field_keeps_the_time(shape: Shape) -> None:
    made = put(None, config({"size": 1, "color": "red"}), shape)
    both = put(made, config({"size": 1, "color": "red"}), shape, "bob", now=T2)
    left = put(both, config({"color": "red"}), shape, now=T3)
    assert left["spec"] == both["spec"]
    assert {e["manager"]: e.get("time") for e in left["metadata"]["managedFields"]} == {"ann": T1, "bob": None}


def test_applying_nothing_owns_nothing(shape: Shape) -> None:
    made = put(None, config({"size": 1}), shape)
    assert put(made, config(), shape, "bob") is made


def test_first_apply_records_earlier_fields(shape: Shape) -> None:
    live = {**config({"size": 1}), "metadata": {"name": "w", "uid": "u"}}
    made = put(live, config({"size": 1, "color": "red"}), shape)
    assert owners(made) == {
        ("ann", "Apply"): {"f:spec": {"f:color": {}, "f:size": {}}},
        ("before-first-apply", "Update"): {"f:spec": {".": {}, "f:size": {}}},
    }
    with pytest.raises(Conflict, match="before-first-apply"):
        put(live, config({"size": 2}), shape)


def test_status_is_applied_through_its_subresource_only(shape: Shape) -> None:
    made = put(None, config({"size": 1}, status={"phase": "x"}), shape, reset=RESET_STATUS)
    assert owners(made) == {("ann", "Apply"): {"f:spec": {"f:size": {}}}}
    told = put(
        made, config({"size": 5}, status={"phase": "y"}), shape, "bob", subresource="status", reset=RESET_ALL_BUT_STATUS
    )
    assert owners(told)["bob", "Apply"] == {"f:status": {"f:phase": {}}}
    assert owners(told)["ann", "Apply"] == {"f:spec": {"f:size": {}}}


def test_apply_in_another_version_keeps_the_manager(shape: Shape) -> None:
    made = put(None, config({"size": 1, "color": "red"}), shape)
    moved = put(made, {**config({"size": 1}), "apiVersion": "example.com/v2"}, shape, now=T2)
    assert moved["spec"] == {"size": 1}
    assert [(e["manager"], e["apiVersion"]) for e in moved["metadata"]["managedFields"]] == [("ann", "example.com/v2")]


def test_managed_fields_cannot_be_applied(shape: Shape) -> None:
    reset: list[Any]
    for reset in ([], [{}]):
        with pytest.raises(BadRequest, match=r"metadata\.managedFields must be nil"):
            put(None, config(metadata={"name": "w", "managedFields": reset}), shape)
    assert put(None, config(metadata={"name": "w", "managedFields": None}), shape)


def test_applied_configuration_must_match_the_schema(shape: Shape) -> None:
    with pytest.raises(ApiError) as refused:
        put(None, config({"unknown": 1}), shape)
    assert refused.value.code == 500
    assert refused.value.message == (
        "failed to create typed patch object (/w; example.com/v1, Kind=Widget): "
        ".spec.unknown: field not declared in schema"
    )


@pytest.mark.parametrize(
    ("identity", "name"),
    [
        ({"apiVersion": "v1", "kind": "Secret"}, "/v1, Kind=Secret"),
        ({"apiVersion": "apps/v1", "kind": "ConfigMap"}, "apps/v1, Kind=ConfigMap"),
        ({}, "/, Kind="),
    ],
)
def test_applied_configuration_must_be_of_the_kind(identity: Object, name: str) -> None:
    check_applied_kind({"apiVersion": "v1", "kind": "ConfigMap"}, CONFIG_MAP)
    with pytest.raises(BadRequest) as refused:
        check_applied_kind(identity, CONFIG_MAP)
    assert refused.value.message == f"invalid object type: {name}"


def test_live_object_is_not_modified(shape: Shape) -> None:
    made = put(None, config({"size": 1, "limits": {"a": "1"}}), shape)
    before = repr(made)
    put(made, config({"limits": {"b": "2"}}), shape, force=True)
    assert repr(made) == before


# Whatever is applied, by whomever

TEXTS = st.sampled_from("12")
PARTS = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from("ab")}, optional={"weight": st.integers(0, 1)}),
    unique_by=lambda part: part["name"],
    min_size=1,
)


def specs(suffix: str = "") -> st.SearchStrategy[Object]:
    """Configurations; those with different suffixes have no field in common."""
    keys = st.sampled_from([f"a{suffix}", f"b{suffix}"])
    optional: dict[str, st.SearchStrategy[Any]] = {
        "limits": st.dictionaries(keys, TEXTS, min_size=1),
        "anything": st.dictionaries(keys, TEXTS | st.dictionaries(keys, TEXTS), min_size=1),
        "tags": st.lists(keys, unique=True, min_size=1),
    }
    if not suffix:
        optional |= {
            "size": st.integers(0, 1),
            "parts": PARTS,
            "steps": st.lists(TEXTS),
            "pair": st.just({"left": "1"}),
        }
    return st.fixed_dictionaries({}, optional=optional)


APPLIES = st.lists(st.tuples(st.sampled_from(["ann", "bob"]), specs()), max_size=4)


def history(applies: list[tuple[str, Object]], shape: Shape) -> Object:
    object = put(None, config({"color": "red"}), shape, "start")
    for manager, spec in applies:
        object = put(object, config(spec), shape, manager, force=True)
    return object


@settings(deadline=None)
@given(APPLIES, specs())
def test_apply_is_idempotent(shape: Shape, applies: list[tuple[str, Object]], spec: Object) -> None:
    once = put(history(applies, shape), config(spec), shape, "cid", force=True)
    assert put(once, config(spec), shape, "cid", now=T2) is once


@settings(deadline=None)
@given(APPLIES, specs())
def test_applied_fields_are_stored_and_owned(shape: Shape, applies: list[tuple[str, Object]], spec: Object) -> None:
    made = put(history(applies, shape), config(spec), shape, "cid", force=True)
    fresh = put(None, config(spec), shape, "cid")
    assert owners(made).get(("cid", "Apply")) == owners(fresh).get(("cid", "Apply"))
    # All owners agree with the current values, so no owner conflicts with them.
    assert put(made, config(spec), shape, "dan")["spec"] == made["spec"]


@settings(deadline=None)
@given(specs("x"), specs("y"))
def test_disjoint_configurations_commute(shape: Shape, one: Object, other: Object) -> None:
    start = put(None, config({"size": 1}), shape, "start")
    forth = put(put(start, config(one), shape, "ann"), config(other), shape, "bob")
    back = put(put(start, config(other), shape, "bob"), config(one), shape, "ann")
    assert owners(forth) == owners(back)
    assert sorted(forth["spec"].pop("tags", [])) == sorted(back["spec"].pop("tags", []))
    assert forth["spec"] == back["spec"]


@settings(deadline=None)
@given(APPLIES)
def test_releasing_all_fields_keeps_those_of_others(shape: Shape, applies: list[tuple[str, Object]]) -> None:
    made = history(applies, shape)
    for manager in ("ann", "bob"):
        made = put(made, config(), shape, manager)
    assert owners(made) == owners(history([], shape))
    assert made["spec"] == {"color": "red"}
