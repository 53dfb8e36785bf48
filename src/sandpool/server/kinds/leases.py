"""Lease: who leads, and until when."""

from __future__ import annotations

from collections.abc import Iterator

from sandpool.api.causes import Cause, invalid
from sandpool.api.resource import Object
from sandpool.server.kinds.copy_on_write import drop, inside
from sandpool.server.kinds.strategy import KindStrategy


class LeaseStrategy(KindStrategy):
    allow_create_on_update = True
    allow_unconditional_update = False

    def prepare_create(self, obj: Object) -> Object:
        """Leader elections that are coordinated are a feature Kubernetes has turned off."""
        return inside(obj, "spec", lambda spec: drop(spec, "strategy", "preferredHolder"))

    def prepare_update(self, new: Object, old: Object) -> Object:
        return self.prepare_create(new)

    def validate(self, new: Object, old: Object | None) -> list[Cause]:
        return list(_validate_spec(new.get("spec") or {}))


def _validate_spec(spec: Object) -> Iterator[Cause]:
    duration, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
    if duration is not None and duration <= 0:
        yield invalid("spec.leaseDurationSeconds", duration, "must be greater than 0")
    if transitions is not None and transitions < 0:
        yield invalid("spec.leaseTransitions", transitions, "must be greater than or equal to 0")
