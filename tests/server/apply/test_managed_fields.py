from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandpool.api.resource import Object
from sandpool.server.apply.fieldset import FieldSet, of
from sandpool.server.apply.managed_fields import (
    APPLY,
    UPDATE,
    InvalidManagedFields,
    cap_updaters,
    contains_all,
    entry,
    identity,
    ignore_time_only_change,
    insert_sorted,
    intersects,
    is_reset,
    owned_fields,
    read,
    sort_key,
    with_managed_fields,
)

T1, T2, T3 = (f"2030-01-01T00:00:0{second}Z" for second in range(1, 4))
DATA = of(("f:data", "f:a"))
ELEMENTS = st.sampled_from(["f:a", "f:b", "f:c"])
SETS = st.lists(st.lists(ELEMENTS, min_size=1, max_size=3).map(tuple), max_size=6).map(lambda paths: of(*paths))


def test_entry_has_the_stored_form() -> None:
    made = entry("kubectl", UPDATE, "v1", "status", T1, DATA)
    assert list(made.items()) == [
        ("manager", "kubectl"),
        ("operation", "Update"),
        ("apiVersion", "v1"),
        ("time", T1),
        ("fieldsType", "FieldsV1"),
        ("fieldsV1", {"f:data": {"f:a": {}}}),
        ("subresource", "status"),
    ]
    assert "time" not in entry("kubectl", APPLY, "v1", "", "", DATA)


def test_appliers_are_equal_in_every_version() -> None:
    assert identity(entry("m", APPLY, "v1", "", T1)) == identity(entry("m", APPLY, "v2", "", T2))
    assert identity(entry("m", UPDATE, "v1", "", T1)) != identity(entry("m", UPDATE, "v2", "", T1))
    assert identity(entry("m", APPLY, "v1", "", T1)) != identity(entry("m", APPLY, "v1", "status", T1))


def test_entries_are_sorted_by_operation_time_and_name() -> None:
    """Appliers first, then by time, then by name; without a time before all."""
    expected = [
        entry("z", APPLY, "v1", "", ""),
        entry("a", APPLY, "v1", "", T2),
        entry("b", UPDATE, "v1", "", T1),
        entry("a", UPDATE, "v1", "", T2),
        entry("a", UPDATE, "v1", "status", T2),
        entry("a", UPDATE, "v2", "", T2),
        entry("b", UPDATE, "v1", "", T2),
    ]
    placed: list[Object] = []
    for each in expected[3:] + expected[:3]:
        insert_sorted(placed, each)
    assert placed == sorted(placed, key=sort_key) == expected


@settings(deadline=None)
@given(SETS, SETS)
def test_encoded_form_answers_containment(fields: FieldSet, others: FieldSet) -> None:
    assert contains_all(fields.fields, others) == (others <= fields)
    if fields & others:
        assert intersects(fields.fields, others)


def test_entries_of_a_client_are_read() -> None:
    given = {
        "manager": "m",
        "operation": "Update",
        "apiVersion": "v1",
        "time": "2030-01-01T02:00:01.5+02:00",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:data": {"f:a": {}, "x:unknown": {}}},
    }
    assert read([given]) == [entry("m", UPDATE, "v1", "", T1, DATA)]
    assert read([{**given, "fieldsV1": {}}, given]) == [entry("m", UPDATE, "v1", "", T1, DATA)]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"operation": "Other"}, "operation must be `Apply` or `Update`"),
        ({"apiVersion": ""}, "apiVersion must not be empty"),
        ({"fieldsType": None}, "missing fieldsType in managed fields entry 0"),
        ({"fieldsType": "V2"}, 'invalid fieldsType "V2" in managed fields entry 0'),
        ({"fieldsV1": {"data": {}}}, "missing colon: data"),
        ({"fieldsV1": "x"}, "must be an object"),
        ({"time": "yesterday"}, "error decoding"),
        ({"time": 5}, "time must be a string"),
    ],
)
def test_invalid_entries_are_rejected(change: Object, problem: str) -> None:
    with pytest.raises(InvalidManagedFields, match=problem):
        read([{**entry("m", UPDATE, "v1", "", T1, DATA), **change}])


@pytest.mark.parametrize("given", [None, {}, [1]])
def test_value_that_is_no_list_of_entries_is_rejected(given: Any) -> None:
    with pytest.raises(InvalidManagedFields):
        read(given)


def test_empty_entries_are_a_reset() -> None:
    assert is_reset([])
    assert is_reset([{}])
    assert not is_reset(None)
    assert not is_reset([{}, {}])
    assert not is_reset([entry("m", UPDATE, "v1", "", T1, DATA)])


def updaters(count: int) -> list[Object]:
    return [
        entry(f"m{number:02}", UPDATE, "v1", "", f"2030-01-01T00:00:{number:02}Z", of((f"f:{number}",)))
        for number in range(count)
    ]


def test_oldest_updaters_are_merged() -> None:
    applier = entry("applier", APPLY, "v1", "", T1, DATA)
    assert cap_updaters(updaters(10)) == updaters(10)
    assert cap_updaters([applier, *updaters(10)]) == [applier, *updaters(10)]
    left = cap_updaters([applier, *updaters(13)])
    merged = entry(
        "ancient-changes", UPDATE, "v1", "", "2030-01-01T00:00:03Z", of(("f:0",), ("f:1",), ("f:2",), ("f:3",))
    )
    assert left == [applier, merged, *updaters(13)[4:]]
    assert cap_updaters(left) == left


def test_updaters_of_different_versions_are_not_merged() -> None:
    old = [entry(f"v{number}", UPDATE, f"v{number}", "", "", of((f"f:{number}",))) for number in range(3)]
    left = cap_updaters([*old, *updaters(9)])
    assert [each for each in left if each["apiVersion"] != "v1"] == [old[0], old[2]]
    assert owned_fields(next(each for each in left if each["manager"] == "ancient-changes")) == of(("f:0",), ("f:1",))


def test_setting_managed_fields_shares_unchanged_parts() -> None:
    entries = updaters(2)
    bare = {"metadata": {"name": "x"}, "data": {}}
    tracked = with_managed_fields(bare, entries)
    assert tracked["metadata"] == {"name": "x", "managedFields": entries}
    assert with_managed_fields(tracked, list(entries)) is tracked
    assert with_managed_fields(tracked, []) == bare
    assert with_managed_fields(bare, []) is bare
    assert with_managed_fields({"kind": "X"}, entries)["metadata"] == {"managedFields": entries}


def test_write_that_changes_only_times_is_dropped() -> None:
    old = with_managed_fields({"metadata": {"name": "x"}, "data": {"a": "1"}}, [entry("m", APPLY, "v1", "", T1, DATA)])
    later = with_managed_fields(old, [entry("m", APPLY, "v1", "", T2, DATA)])
    other = with_managed_fields(old, [entry("n", APPLY, "v1", "", T2, DATA)])
    assert ignore_time_only_change(old, later) is old
    assert ignore_time_only_change(old, other) is other
    assert ignore_time_only_change(old, changed := {**later, "data": {}}) is changed
    assert ignore_time_only_change(old, bare := with_managed_fields(old, [])) is bare
