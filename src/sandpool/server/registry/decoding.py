"""From a decoded body to an object of the expected kind that fits its schema, or the error kube-apiserver gives.

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
    """The body as an object of the resource's kind. What it leaves out of apiVersion and kind is filled in by name."""
    type = resource.type
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
    """The body may leave out the name that the URL has said, and not contradict it."""
    given = metadata.get("name", name)
    if given != name:
        raise BadRequest(f"the name of the object ({given}) does not match the name on the URL ({name})")


def expect_namespace(resource: Resource, metadata: Object, namespace: str) -> None:
    """The same for the namespace, where there is one."""
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
    """Prune, default and check by schema. Unknown and duplicate fields are refused, warned about or dropped, as the
    client asked. Returns the object and what is wrong with its values."""
    try:
        admitted = resource.admit(new, old)
    except Undecodable as error:
        raise _unreadable(resource, str(error)) from None
    if validation != "Ignore" and (admitted.unknown or duplicates):
        found = [f'unknown field "{path}"' for path in admitted.unknown]
        _complain(resource, [*found, *_repeated(duplicates)], validation, warnings)
    return admitted.object, admitted.causes


def check_duplicates(resource: Resource, duplicates: tuple[str, ...], validation: str, warnings: list[str]) -> None:
    """For a patch, of which only the text can have duplicates: the object it makes has none."""
    if duplicates and validation != "Ignore":
        _complain(resource, _repeated(duplicates), validation, warnings)


def _repeated(duplicates: tuple[str, ...]) -> list[str]:
    return [f'duplicate field "{path}"' for path in duplicates]


def _complain(resource: Resource, found: list[str], validation: str, warnings: list[str]) -> None:
    if validation == "Strict":
        raise _unreadable(resource, f"strict decoding error: {', '.join(found)}")
    warnings.extend(found)


class Unreadable(BadRequest):
    """A body that cannot be read as the kind it should be. ``why`` is the part of the message that a patch, which is
    refused in other words, has in common."""

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
