from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.resource import Object
from sandpool.server.kinds.metadata import (
    ANNOTATIONS_LIMIT,
    drop_system_fields,
    keep_system_fields,
    validate_metadata,
)


def problems(new: Object, old: Object | None = None, **options: Any) -> list[str]:
    options = {"namespaced": True, **options}
    before = {"metadata": old} if old is not None else None
    return [f"{cause.field}: {cause.message}" for cause in validate_metadata({"metadata": new}, before, **options)]


def named(**more: Any) -> Object:
    return {"name": "a", "namespace": "n", **more}


def owner(**more: Any) -> Object:
    return {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", **more}


def test_valid_metadata_have_no_errors() -> None:
    metadata = named(
        labels={"a/b": "c"},
        annotations={"X/Y": "anything at all"},
        ownerReferences=[owner(controller=True), owner(uid="v")],
        finalizers=["example.com/x", "orphan"],
        generateName="a-",
    )
    assert problems(metadata) == []


@pytest.mark.parametrize(
    ("metadata", "options", "expected"),
    [
        ({"namespace": "n"}, {}, ["metadata.name: Required value: name or generateName is required"]),
        ({"name": "a"}, {}, ["metadata.namespace: Required value"]),
        (named(), {"namespaced": False}, ["metadata.namespace: Forbidden: not allowed on this type"]),
        (
            {"name": "a", "namespace": "a.b"},
            {},
            ['metadata.namespace: Invalid value: "a.b": must not contain dots'],
        ),
        (named(name="a.b"), {"name_format": "label"}, ['metadata.name: Invalid value: "a.b": must not contain dots']),
        (named(name="a:b"), {"name_format": "path"}, []),
        (
            named(finalizers=["plain"]),
            {},
            [
                'metadata.finalizers[0]: Invalid value: "plain": name is neither a standard finalizer name nor is it '
                "fully qualified"
            ],
        ),
        (named(finalizers=["plain"]), {"custom": True}, []),
        (
            named(finalizers=["orphan", "foregroundDeletion"]),
            {},
            [
                'metadata.finalizers: Invalid value: ["orphan","foregroundDeletion"]: finalizer orphan and '
                "foregroundDeletion cannot be both set"
            ],
        ),
        (
            named(annotations={"a": "x" * ANNOTATIONS_LIMIT}),
            {},
            ["metadata.annotations: Too long: may not be more than 262144 bytes"],
        ),
        (
            named(ownerReferences=[{}]),
            {},
            [
                'metadata.ownerReferences.apiVersion: Invalid value: "": version must not be empty',
                'metadata.ownerReferences.kind: Invalid value: "": must not be empty',
                'metadata.ownerReferences.name: Invalid value: "": must not be empty',
                'metadata.ownerReferences.uid: Invalid value: "": must not be empty',
            ],
        ),
        (
            named(ownerReferences=[owner(kind="Event")]),
            {},
            [
                'metadata.ownerReferences: Invalid value: {"apiVersion":"v1","kind":"Event","name":"p","uid":"u"}: '
                "/v1, Kind=Event is disallowed from being an owner"
            ],
        ),
    ],
)
def test_invalid_metadata_are_reported(metadata: Object, options: dict[str, Any], expected: list[str]) -> None:
    assert problems(metadata, **options) == expected


def test_second_controller_reference_is_rejected() -> None:
    references = [owner(controller=True), owner(uid="v", name="q", controller=True)]
    (problem,) = problems(named(ownerReferences=references))
    assert problem.endswith(
        'Only one reference can have Controller set to true. Found "true" in references for Pod/p and Pod/q'
    )


@pytest.mark.parametrize("field", ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp"])
def test_immutable_metadata_cannot_change(field: str) -> None:
    assert problems(named(**{field: "other"}), named(**{field: "before"})) == [
        f'metadata.{field}: Invalid value: "other": field is immutable'
    ]


def test_finalizers_cannot_be_added_while_deleting() -> None:
    old = named(deletionTimestamp="t", finalizers=["a/b"])
    assert problems({**old, "finalizers": []}, old) == []
    assert problems({**old, "finalizers": ["a/b", "c/d"]}, old) == [
        "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, "
        'found new finalizers []string{"c/d"}'
    ]


def test_unchanged_metadata_are_not_validated_again() -> None:
    labels = {"not valid": "at all"}
    old = named(labels=labels)
    assert problems(old, old) == []
    assert problems(named(labels=labels, annotations={}), old) == []


def test_system_fields_are_dropped_on_create() -> None:
    given = named(uid="u", creationTimestamp="t", deletionTimestamp="t", generation=7, labels={"a": "b"})
    assert drop_system_fields(given) == named(labels={"a": "b"})
    plain = named()
    assert drop_system_fields(plain) is plain


def test_system_fields_are_kept_on_update() -> None:
    old = named(uid="u", creationTimestamp="t", generation=3, deletionTimestamp="d", deletionGracePeriodSeconds=5)
    assert keep_system_fields(named(), old) == old
    assert keep_system_fields(named(generation=9, creationTimestamp="x", deletionTimestamp="y"), old) == old
    assert keep_system_fields(named(uid="other"), old)["uid"] == "other"
    assert keep_system_fields(old, old) is old


def test_managed_fields_are_validated_only_if_the_request_changed_them() -> None:
    before = named(uid="u", managedFields=[{"manager": "m" * 300}])
    after = {**before, "managedFields": [{"manager": "n" * 300}]}
    assert problems(after, before) == []
    assert problems(after, before, sent=before) == []
    assert problems(after, before, sent={"name": "a"}) == []
    assert problems(after, before, sent=after) == [
        "metadata.managedFields[0].manager: Too long: may not be more than 128 bytes"
    ]
