"""Migration from client-side to server-side ``kubectl apply``.

Client-side apply stores the last configuration in an annotation and writes with patches, so kubectl owns its fields as
an updater. When it switches to server-side apply, it must not conflict with its own updates. As long as the annotation
exists, it is kept up to date for clients that still use client-side apply. All of this applies to the manager
``kubectl`` only.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from sandpool.api.resource import Object
from sandpool.api.schema.shape import Shape
from sandpool.server.apply.comparison import compare, fields_of
from sandpool.server.apply.fieldset import EMPTY, FieldSet
from sandpool.server.apply.go_format import json_text
from sandpool.server.apply.validate import schema_errors

KUBECTL: Final = "kubectl"
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_MAX_ANNOTATIONS_SIZE: Final = 256 * 1024


def fields_last_applied(live: Object, shape: Shape, api_version: str) -> FieldSet:
    """The fields that kubectl may take from other managers without force: those unchanged since its last apply."""
    try:
        last = orjson.loads(_annotations(live).get(LAST_APPLIED) or "null")
    except orjson.JSONDecodeError:
        return EMPTY
    if not isinstance(last, dict) or not last.get("kind") or last.get("apiVersion") != api_version:
        return EMPTY
    if schema_errors(last, shape) or schema_errors(live, shape):
        return EMPTY
    written, removed = compare(last, live, shape)
    return fields_of(last, shape) - written - removed


def update_annotation(result: Object, applied: Object) -> Object:
    """Update the last-applied annotation of ``result``, if it has one, to the applied configuration."""
    annotations = _annotations(result)
    if not annotations.get(LAST_APPLIED):
        return result
    annotations = {**annotations, LAST_APPLIED: json_text(_without_annotation(applied)) + "\n"}
    if sum(len(name.encode()) + len(value.encode()) for name, value in annotations.items()) > _MAX_ANNOTATIONS_SIZE:
        del annotations[LAST_APPLIED]
    return {**result, "metadata": {**result["metadata"], "annotations": annotations}}


def _without_annotation(applied: Object) -> Object:
    metadata = applied.get("metadata") or {}
    if LAST_APPLIED not in _annotations(applied):
        return applied
    annotations = {name: value for name, value in metadata["annotations"].items() if name != LAST_APPLIED}
    return {**applied, "metadata": {**metadata, "annotations": annotations}}


def _annotations(object: Object) -> dict[str, Any]:
    return (object.get("metadata") or {}).get("annotations") or {}
