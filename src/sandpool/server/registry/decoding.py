"""From a decoded body to an object of the expected kind that fits its schema, or the error kube-apiserver gives.

Built-in kinds and custom resources fail differently, because kube-apiserver decodes the first into Go structs and the
second into maps: a wrong type is a bad request (400) for a Pod and an invalid object (422) for a Sandbox.
"""

from __future__ import annotations

from typing import Any

import orjson

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
    if not isinstance(body.get("metadata") or {}, dict):
        raise _unreadable(resource, "json: cannot unmarshal a metadata that is not an object")
    api_version, kind = body.get("apiVersion"), body.get("kind")
    if kind in (None, "") and api_version in (None, ""):
        return {"apiVersion": type.api_version, "kind": type.kind, **_plain(body)}
    if kind in (None, ""):
        raise BadRequest(f"Object 'Kind' is missing in '{orjson.dumps(body).decode()[:200]}'")
    if api_version in (None, ""):
        raise BadRequest(f"Object 'apiVersion' is missing in '{orjson.dumps(body).decode()[:200]}'")
    if kind != type.kind:
        raise BadRequest(
            f"the kind in the data ({kind}) does not match the expected kind ({type.kind})"
            if resource.custom
            else f'{kind} in version "{str(api_version).rpartition("/")[2]}" cannot be handled as a {type.kind}: '
            f"converting ({api_version}.{kind}) to ({type.api_version}.{type.kind}): unknown conversion"
        )
    if api_version != type.api_version:
        raise BadRequest(
            f"the API version in the data ({api_version}) does not match the expected API version ({type.api_version})"
        )
    return body


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
        found += [f'duplicate field "{path}"' for path in duplicates]
        if validation == "Strict":
            raise _unreadable(resource, f"strict decoding error: {', '.join(found)}")
        warnings.extend(found)
    return admitted.object, admitted.causes


def _unreadable(resource: Resource, why: str) -> BadRequest:
    type = resource.type
    return BadRequest(f'{type.kind} in version "{type.version}" cannot be handled as a {type.kind}: {why}')


def refuse_invalid(resource: Resource, obj: Object, causes: list[Cause]) -> None:
    if causes:
        metadata = obj.get("metadata") or {}
        raise invalid(resource.type, metadata.get("name") or metadata.get("generateName") or "", causes)
