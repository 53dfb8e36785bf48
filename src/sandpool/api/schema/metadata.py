"""Decodes and checks the metadata of custom and embedded resources by the rules of built-in kinds, as
kube-apiserver does."""

from __future__ import annotations

from functools import cache
from typing import Any

from sandpool.api.schema import core
from sandpool.api.schema.decode import Decoding
from sandpool.api.schema.findings import Findings
from sandpool.api.schema.govalues import Decode, Mismatch


@cache
def _decode() -> Decode:
    return Decoding().compile(core.definition(core.OBJECT_META))


def metadata_check(value: Any, old: Any, found: Findings) -> Any:
    """Return the metadata in the form to store, and add what is wrong to ``found``. ``old`` is the metadata before an
    update. Raises Undecodable when the value cannot be read."""
    if value is None:
        return {}
    try:
        return _decode()(value, old, found)
    except Mismatch as mismatch:
        raise mismatch.undecodable() from None
