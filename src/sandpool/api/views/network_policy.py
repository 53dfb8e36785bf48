"""View of a NetworkPolicy."""

from __future__ import annotations

from dataclasses import dataclass

from sandpool.api.resource import SharedObject
from sandpool.api.views.metadata import View, metadata_of


@dataclass(frozen=True, slots=True)
class NetworkPolicyView(View):
    spec: SharedObject

    @classmethod
    def from_object(cls, obj: SharedObject) -> NetworkPolicyView:
        return cls(**metadata_of(obj), spec=obj.get("spec") or {})
