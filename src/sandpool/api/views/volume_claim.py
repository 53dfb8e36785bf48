"""View of a PersistentVolumeClaim: its owner."""

from __future__ import annotations

from dataclasses import dataclass

from sandpool.api.resource import SharedObject
from sandpool.api.views.metadata import View, metadata_of


@dataclass(frozen=True, slots=True)
class VolumeClaimView(View):
    @classmethod
    def from_object(cls, obj: SharedObject) -> VolumeClaimView:
        return cls(**metadata_of(obj))
