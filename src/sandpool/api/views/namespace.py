"""View of a Namespace: its annotations, which limit what is in it."""

from __future__ import annotations

from dataclasses import dataclass

from sandpool.api.resource import SharedObject
from sandpool.api.views.metadata import View, metadata_of


@dataclass(frozen=True, slots=True)
class NamespaceView(View):
    @classmethod
    def from_object(cls, obj: SharedObject) -> NamespaceView:
        return cls(**metadata_of(obj))
