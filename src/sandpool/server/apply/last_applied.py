"""The move from client-side to server-side apply.

``kubectl apply`` used to keep what it applied last in an annotation and to write by patches, so that kubectl owns its
fields as an updater. When kubectl comes as an applier it must not run into conflicts with its own past, and while the
annotation is there it has to stay true, for those who still go by it. All of this is for the manager ``kubectl`` only.
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
    """The fields kubectl may take from others without force: those that still are as it last applied them."""
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
    """``result`` with the annotation, if it has one, saying what was applied just now."""
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
