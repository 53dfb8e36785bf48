"""One thing wrong with an object, as validation finds it and a Status answer lists it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cause:
    """Which field, what kind of mistake, what to do about it."""

    field: str  # "spec.replicas", "spec.containers[0].name"
    reason: str  # FieldValueRequired, FieldValueInvalid, FieldValueNotSupported, FieldValueForbidden, ...
    message: str  # e.g. 'Invalid value: -1: must be greater than or equal to 0'

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"
