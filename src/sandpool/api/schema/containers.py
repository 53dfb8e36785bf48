"""Validation of objects and lists as a whole: size limits, uniqueness, enum and combined schemas."""

from __future__ import annotations

from typing import Any

from sandpool.api import causes
from sandpool.api.schema.alternatives import AlternativesCheck
from sandpool.api.schema.findings import Findings
from sandpool.api.schema.shape import Shape


def check_object_limits(
    shape: Shape, value: dict[str, Any], found: Findings, alternatives: AlternativesCheck | None
) -> None:
    if alternatives is not None:
        alternatives(value, found)
    size, fewest, most = len(value), shape.min_properties, shape.max_properties
    if fewest is not None and size < fewest:
        found.add(lambda path: causes.invalid(path, size, f"{path} in body should have at least {fewest} properties"))
    if most is not None and size > most:
        found.add(lambda path: causes.too_many(path, size, most))
    if shape.enum and value not in shape.enum:
        found.add(lambda path: causes.not_supported(path, value, shape.enum))


def check_array_limits(shape: Shape, value: list[Any], found: Findings, alternatives: AlternativesCheck | None) -> None:
    if alternatives is not None:
        alternatives(value, found)
    size, fewest, most = len(value), shape.min_items, shape.max_items
    if fewest is not None and size < fewest:
        found.add(lambda path: causes.invalid(path, size, f"{path} in body should have at least {fewest} items"))
    if most is not None and size > most:
        found.add(lambda path: causes.too_many(path, size, most))
    if shape.unique_items and any(item in value[:index] for index, item in enumerate(value)):
        found.add(lambda path: causes.invalid(path, "", f"{path} in body shouldn't contain duplicates"))
    if shape.enum and value not in shape.enum:
        found.add(lambda path: causes.not_supported(path, value, shape.enum))
