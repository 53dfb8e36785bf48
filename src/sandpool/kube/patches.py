"""JSON merge patch (RFC 7386) and the smallest merge patch between two values.

A patch never copies a whole tree: it builds new containers along the changed path and shares all other subtrees. A
patch that changes nothing returns its argument, so callers test ``new is old`` instead of comparing trees.

As in kube-apiserver, a merge patch also drops nulls from objects inside lists, where the RFC keeps them. JSON patch is
in ``kube.jsonpatch``, strategic merge patch in ``kube.strategic``.
"""

from __future__ import annotations

from typing import Any

from sandpool.api.resource import Object
from sandpool.kube.errors import TOO_DEEP, MalformedPatch, PatchError
from sandpool.kube.jsonpatch import json_patch
from sandpool.kube.sharing import same, without_nulls

__all__ = ["MalformedPatch", "PatchError", "json_patch", "merge_diff", "merge_patch", "merge_patch_object"]


def merge_patch(target: Any, patch: Any) -> Any:
    """Apply a merge patch. Returns ``target`` itself if the patch changes nothing."""
    try:
        return _merge(target, patch)
    except RecursionError:
        raise MalformedPatch(TOO_DEEP) from None


def merge_patch_object(target: Object, patch: Any) -> Object:
    """Apply a merge patch to an API object. Rejects a patch that is not an object, as kube-apiserver does."""
    if patch is None:
        raise MalformedPatch("Invalid JSON Patch")
    if not isinstance(patch, dict):
        raise MalformedPatch.wrong_type(patch, "value", "map[string]interface {}")
    merged: Object = merge_patch(target, patch)
    return merged


def _merge(target: Any, patch: Any) -> Any:
    if type(patch) is not dict or type(target) is not dict:
        value = without_nulls(patch)
        return target if same(target, value) else value
    merged: dict[str, Any] | None = None
    for key, change in patch.items():
        if change is None:
            if key in target:
                merged = dict(target) if merged is None else merged
                del merged[key]
            continue
        before = target.get(key)
        kind = type(change)
        if kind is not dict and kind is not list:
            after = before if kind is type(before) and change == before else change
        else:
            after = without_nulls(change) if before is None else _merge(before, change)
        if after is not before:
            merged = dict(target) if merged is None else merged
            merged[key] = after
    return target if merged is None else merged


def merge_diff(old: Any, new: Any) -> Any | None:
    """The smallest merge patch from ``old`` to ``new``; None if they are the same.

    A merge patch cannot set a member to null (null means removal), so a null in ``new`` counts as absent.
    """
    try:
        if isinstance(old, dict) and isinstance(new, dict):
            return _diff(old, new) or None
        return None if same(old, new) else new
    except RecursionError:
        raise MalformedPatch(TOO_DEEP) from None


def _diff(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    patch: dict[str, Any] = {}
    for key, after in new.items():
        before = old.get(key)
        if after is before:
            continue
        if type(before) is dict and type(after) is dict:
            if change := _diff(before, after):
                patch[key] = change
        elif not same(before, after):
            patch[key] = after
    for key in old:
        if key not in new:
            patch[key] = None
    return patch
