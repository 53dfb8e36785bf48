from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sandpool.api.kinds import DEPLOYMENT
from sandpool.api.resource import Object
from sandpool.api.schema.core import shape_of
from sandpool.api.schema.shape import Shape
from sandpool.server.apply import RESET_ALL_BUT_STATUS, RESET_STATUS, track_update
from sandpool.server.apply.fieldset import EMPTY, FieldSet, of
from sandpool.server.apply.managed_fields import UPDATE, entry, owned_fields
from sandpool.server.apply.update import _remembered_owners, changed, take_ownership

T1, T2, T3 = (f"2030-01-01T00:00:0{second}Z" for second in range(1, 4))


def widget(**parts: Any) -> Object:
    return {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w", "uid": "u"}, **parts}


def track(
    old: Object | None,
    new: Object,
    shape: Shape,
    manager: str = "m",
    subresource: str = "",
    now: str = T1,
    reset: FieldSet | None = None,
) -> Object:
    if old is not None and "managedFields" in old["metadata"] and "managedFields" not in new["metadata"]:
        new = {**new, "metadata": {**new["metadata"], "managedFields": old["metadata"]["managedFields"]}}
    return track_update(
        old,
        new,
        shape=shape,
        manager=manager,
        subresource=subresource,
        api_version="example.com/v1",
        now=now,
        reset=reset,
    )


def owners(object: Object) -> dict[str, Any]:
    entries = object["metadata"].get("managedFields", [])
    return {"/".join(filter(None, (e["manager"], e.get("subresource")))): e["fieldsV1"] for e in entries}


def test_creator_owns_the_created_fields(shape: Shape) -> None:
    made = track(None, widget(spec={"size": 1, "limits": {"a": "1"}}), shape)
    assert made["metadata"]["managedFields"] == [
        {
            "manager": "m",
            "operation": "Update",
            "apiVersion": "example.com/v1",
            "time": T1,
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {".": {}, "f:limits": {".": {}, "f:a": {}}, "f:size": {}}},
        }
    ]


def test_structs_of_a_new_object_have_no_owner() -> None:
    """As in every Deployment of a cluster: spec, template, strategy and containers have no owner."""
    container = {"name": "a", "image": "i", "resources": {}, "ports": [{"containerPort": 80, "protocol": "TCP"}]}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container]}}
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%"}}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "strategy": strategy, "template": template}
    made = track(None, {**widget(spec=spec), "status": {}}, shape_of(DEPLOYMENT), reset=RESET_STATUS)
    port: Object = {".": {}, "f:containerPort": {}, "f:protocol": {}}
    fields = {
        ".": {},
        "f:image": {},
        "f:name": {},
        "f:ports": {".": {}, 'k:{"containerPort":80,"protocol":"TCP"}': port},
        "f:resources": {},
    }
    assert owners(made)["m"] == {
        "f:spec": {
            "f:selector": {},
            "f:strategy": {"f:rollingUpdate": {".": {}, "f:maxSurge": {}}, "f:type": {}},
            "f:template": {
                "f:metadata": {"f:labels": {".": {}, "f:a": {}}},
                "f:spec": {"f:containers": {'k:{"name":"a"}': fields}},
            },
        }
    }


def test_changed_field_moves_to_its_writer(shape: Shape) -> None:
    made = track(None, widget(spec={"size": 1, "color": "red"}), shape, "ann")
    changed = track(made, widget(spec={"size": 2, "color": "red"}), shape, "bob", now=T2)
    assert owners(changed) == {"ann": {"f:spec": {".": {}, "f:color": {}}}, "bob": {"f:spec": {"f:size": {}}}}
    again = track(changed, widget(spec={"size": 3, "color": "blue"}), shape, "bob", now=T3)
    assert owners(again) == {"ann": {"f:spec": {}}, "bob": {"f:spec": {"f:color": {}, "f:size": {}}}}
    assert again["metadata"]["managedFields"][1]["time"] == T3


def test_removed_field_has_no_owner(shape: Shape) -> None:
    made = track(None, widget(spec={"size": 1}), shape, "ann")
    more = track(made, widget(spec={"size": 1, "color": "red"}), shape, "bob")
    less = track(more, widget(spec={"size": 1}), shape, "cid", now=T2)
    assert owners(less) == {"ann": {"f:spec": {".": {}, "f:size": {}}}}


def test_write_without_changes_keeps_managed_fields(shape: Shape) -> None:
    made = track(None, widget(spec={"size": 1}), shape)
    assert track(made, made, shape, "bob", now=T2) is made
    bumped = {**made, "metadata": {**made["metadata"], "resourceVersion": "2", "generation": 7}}
    assert track(made, bumped, shape, "bob", now=T2) is bumped


def test_writing_the_same_fields_updates_only_the_time(shape: Shape) -> None:
    made = track(None, widget(spec={"size": 1}), shape)
    again = track(made, widget(spec={"size": 2}), shape, now=T2)
    assert owners(again) == owners(made)
    assert [each["time"] for each in again["metadata"]["managedFields"]] == [T2]


def test_subresources_and_versions_have_separate_entries(shape: Shape) -> None:
    made = track(None, widget(spec={"size": 1}), shape, reset=RESET_STATUS)
    status = widget(spec={"size": 5}, status={"phase": "Ready"})
    told = track(made, status, shape, subresource="status", reset=RESET_ALL_BUT_STATUS)
    assert owners(told) == {
        "m": {"f:spec": {".": {}, "f:size": {}}},
        "m/status": {"f:status": {".": {}, "f:phase": {}}},
    }


def test_status_sent_to_the_main_resource_is_not_owned(shape: Shape) -> None:
    made = track(None, widget(spec={"size": 1}, status={"phase": "x"}), shape, reset=RESET_STATUS)
    assert owners(made) == {"m": {"f:spec": {".": {}, "f:size": {}}}}


def test_client_without_a_name_is_unknown(shape: Shape) -> None:
    assert list(owners(track(None, widget(spec={"size": 1}), shape, manager=""))) == ["unknown"]


def test_reset_clears_all_entries_until_the_next_apply(shape: Shape) -> None:
    made = track(None, widget(spec={"size": 1}), shape)
    reset: list[Any]
    for reset in ([], [{}]):
        new = widget(spec={"size": 2})
        forgot = track(made, {**new, "metadata": {**new["metadata"], "managedFields": reset}}, shape)
        assert "managedFields" not in forgot["metadata"]
    later = track(forgot, widget(spec={"size": 3}), shape)
    assert "managedFields" not in later["metadata"]


def test_client_can_edit_managed_fields(shape: Shape) -> None:
    made = track(None, widget(spec={"size": 1}), shape, "ann")
    edited = entry("bob", UPDATE, "example.com/v1", "", T2, of(("f:spec", "f:size")))
    new = {**made, "metadata": {**made["metadata"], "managedFields": [edited]}}
    assert owners(track(made, new, shape, "cid")) == {"bob": {"f:spec": {"f:size": {}}}}
    # but not through a subresource
    assert owners(track(made, new, shape, "cid", subresource="status")) == owners(made)


def test_unreadable_managed_fields_are_ignored(shape: Shape) -> None:
    made = track(None, widget(spec={"size": 1}), shape)
    broken = {**made["metadata"]["managedFields"][0], "operation": "Other"}
    new = {**made, "metadata": {**made["metadata"], "managedFields": [broken]}}
    assert owners(track(made, new, shape, "bob")) == owners(made)


def test_omitted_managed_fields_are_kept(shape: Shape) -> None:
    made = track(None, widget(spec={"size": 1}), shape)
    new = track_update(
        made,
        widget(spec={"size": 1}),
        shape=shape,
        manager="bob",
        subresource="",
        api_version="example.com/v1",
        now=T2,
        reset=None,
    )
    assert owners(new) == owners(made)


def test_object_that_cannot_be_compared_has_no_managed_fields(shape: Shape) -> None:
    made = track(None, widget(spec={"size": 1}), shape)
    assert owners(track(made, widget(spec={"tags": [None]}), shape)) == {}


def test_number_of_updaters_is_limited(shape: Shape) -> None:
    object = track(None, widget(spec={"limits": {"x": "x"}}), shape, "m-0")
    for number in range(1, 12):
        limits = {**object["spec"]["limits"], str(number): "x"}
        object = track(
            object, widget(spec={"limits": limits}), shape, f"m-{number}", now=f"2030-01-01T00:01:{number:02}Z"
        )
    assert len(owners(object)) == 10
    assert owners(object)["ancient-changes"]["f:spec"]["f:limits"] == {".": {}, "f:1": {}, "f:2": {}, "f:x": {}}


SPECS = st.fixed_dictionaries(
    {},
    optional={
        "size": st.integers(0, 2),
        "limits": st.dictionaries(st.sampled_from("ab"), st.sampled_from("12")),
        "tags": st.lists(st.sampled_from("abc"), unique=True),
        "pair": st.dictionaries(st.sampled_from(["left", "right"]), st.sampled_from("12")),
    },
)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["ann", "bob", "cid"]), SPECS), min_size=1, max_size=6))
def test_every_field_has_at_most_one_updater(shape: Shape, writes: list[tuple[str, Object]]) -> None:
    object: Object | None = None
    for manager, spec in writes:
        object = track(object, widget(spec=spec), shape, manager)
        seen = EMPTY
        for each in object["metadata"].get("managedFields", []):
            assert owned_fields(each)
            assert not owned_fields(each) & seen
            seen |= owned_fields(each)


#: Uids and times with the values that matter: other orders, equal ones, escapes and the spelling of a placeholder.
UIDS = st.sampled_from(["a", "b", "a-2", "$00", "$01", 'q"', "<", "é", ""])
TIMES = st.sampled_from([T1, T2, T3])
OWNED = st.lists(UIDS, unique=True, max_size=4).map(lambda uids: [{"uid": uid, "kind": "K"} for uid in uids])


@given(st.lists(st.tuples(st.sampled_from("mno"), TIMES, OWNED), min_size=1, max_size=5))
@settings(max_examples=200, deadline=None)
def test_remembered_owners_are_those_computed_for_this_object(writes: list[tuple[str, str, list[Object]]]) -> None:
    """Neither the values of variables nor the writes to other objects before change the result."""
    shape = shape_of(DEPLOYMENT)
    tracked: Object | None = None
    for manager, now, references in writes:
        entries = tracked["metadata"].get("managedFields", []) if tracked is not None else []
        new = widget(spec={}) if tracked is None else tracked
        new = {**new, "metadata": {**new["metadata"], "ownerReferences": references}}
        before, tracked = tracked, track(tracked, new, shape, manager, now=now)
        if before is not None:
            writer = entry(manager, UPDATE, "example.com/v1", "", now)
            computed = take_ownership(entries, changed(before, new, shape, None), shape, writer)
            assert tracked["metadata"].get("managedFields", []) == computed


def test_objects_that_differ_in_variables_share_one_computation() -> None:
    shape, computed = shape_of(DEPLOYMENT), _remembered_owners.cache_info()  # type: ignore[attr-defined]
    for number, now in enumerate((T1, T2, T3)):
        metadata = {"name": f"w{number}", "ownerReferences": [{"uid": f"{number}-shared", "name": "owner"}]}
        made = track(None, {**widget(), "metadata": metadata}, shape, "sharer", now=now)
        (owner,) = made["metadata"]["managedFields"]
        assert owner["time"] == now
        assert f'k:{{"uid":"{number}-shared"}}' in owner["fieldsV1"]["f:metadata"]["f:ownerReferences"]
    assert _remembered_owners.cache_info().misses == computed.misses + 1  # type: ignore[attr-defined]
