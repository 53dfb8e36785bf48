"""Checks that a body is an object of the expected kind and fits its schema, with kube-apiserver's errors.

Built-in kinds and custom resources fail differently, because kube-apiserver decodes the first into Go structs and the
second into maps: a wrong type is a bad request (400) for a Pod and an invalid object (422) for a Sandbox.
"""

from __future__ import annotations

from typing import Any

import orjson

from sandpool.api import causes
from sandpool.api.causes import Cause
from sandpool.api.resource import Object
from sandpool.api.schema.findings import Undecodable
from sandpool.kube.errors import BadRequest, invalid
from sandpool.server.resources import Resource


def expect_kind(resource: Resource, body: Any) -> Object:
    """Check that the body is of the resource's kind. Missing apiVersion and kind are filled in."""
    type = resource.type
    if (
        body.__class__ is dict
        and body.get("kind") == type.kind
        and body.get("apiVersion") == type.api_version
        and body.get("metadata").__class__ is dict
    ):
        return body
    if not isinstance(body, dict):
        raise _unreadable(resource, "json: cannot unmarshal a value that is not an object")
    if not isinstance(body.get("metadata"), dict | None):
        raise _unreadable(resource, "json: cannot unmarshal a metadata that is not an object")
    api_version, kind = body.get("apiVersion"), body.get("kind")
    if kind in (None, "") and api_version in (None, ""):
        return {"apiVersion": type.api_version, "kind": type.kind, **_plain(body)}
    if kind in (None, ""):
        raise BadRequest(f"Object 'Kind' is missing in '{orjson.dumps(body).decode()[:200]}'")
    if api_version in (None, ""):
        raise BadRequest(f"Object 'apiVersion' is missing in '{orjson.dumps(body).decode()[:200]}'")
    if resource.custom:
        _expect_custom_kind(resource, body)
    elif kind != type.kind or api_version != type.api_version:
        version = str(api_version).rpartition("/")[2]
        raise Unreadable(
            f'{kind} in version "{version}" cannot be handled as a {type.kind}: ',
            f'no kind "{kind}" is registered for version "{api_version}" where {type.api_version} is served',
        )
    return body


def expect_name(metadata: Object, name: str) -> None:
    """The body may omit the name of the URL but not contradict it."""
    given = metadata.get("name", name)
    if given != name:
        raise BadRequest(f"the name of the object ({given}) does not match the name on the URL ({name})")


def expect_namespace(resource: Resource, metadata: Object, namespace: str) -> None:
    """The body may omit the namespace of the URL but not contradict it."""
    if resource.type.namespaced and (metadata.get("namespace") or namespace) != namespace:
        raise BadRequest("the namespace of the provided object does not match the namespace sent on the request")


def _expect_custom_kind(resource: Resource, body: Object) -> None:
    type = resource.type
    api_version, kind = body["apiVersion"], body["kind"]
    if api_version != type.api_version:
        raise BadRequest(
            f"the API version in the data ({api_version}) does not match the expected API version ({type.api_version})"
        )
    if kind != type.kind:
        refuse_invalid(resource, body, [causes.invalid("kind", kind, f"must be {type.kind}")])


def _plain(body: Object) -> Object:
    return {key: value for key, value in body.items() if key not in ("apiVersion", "kind")}


def fit(
    resource: Resource,
    new: Object,
    old: Object | None,
    validation: str,
    warnings: list[str],
    duplicates: tuple[str, ...] = (),
) -> tuple[Object, list[Cause]]:
    """Prune, default and validate by schema. Unknown and duplicate fields are refused, warned about or dropped,
    depending on ``validation``. Returns the object and the causes of invalid values."""
    try:
        admitted = resource.admit(new, old)
    except Undecodable as error:
        raise _unreadable(resource, str(error)) from None
    if validation != "Ignore" and (admitted.unknown or duplicates):
        found = [f'unknown field "{path}"' for path in admitted.unknown]
        _report(resource, [*found, *_repeated(duplicates)], validation, warnings)
    return admitted.object, admitted.causes


def check_duplicates(resource: Resource, duplicates: tuple[str, ...], validation: str, warnings: list[str]) -> None:
    """Check duplicates of a patch. Only its text can have some; the patched object cannot."""
    if duplicates and validation != "Ignore":
        _report(resource, _repeated(duplicates), validation, warnings)


def _repeated(duplicates: tuple[str, ...]) -> list[str]:
    return [f'duplicate field "{path}"' for path in duplicates]


def _report(resource: Resource, found: list[str], validation: str, warnings: list[str]) -> None:
    if validation == "Strict":
        raise _unreadable(resource, f"strict decoding error: {', '.join(found)}")
    warnings.extend(found)


class Unreadable(BadRequest):
    """The body cannot be decoded as the expected kind. ``why`` is the part of the message that the error for a patch
    shares."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(what + why)
        self.why = why


def _unreadable(resource: Resource, why: str) -> Unreadable:
    type = resource.type
    return Unreadable(f'{type.kind} in version "{type.version}" cannot be handled as a {type.kind}: ', why)


def refuse_invalid(resource: Resource, obj: Object, found: list[Cause]) -> None:
    if found:
        metadata = obj.get("metadata") or {}
        raise invalid(resource.type, metadata.get("name") or metadata.get("generateName") or "", found)
