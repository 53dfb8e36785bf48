"""View of a NetworkPolicy."""

from __future__ import annotations

from dataclasses import dataclass

from sandpool.api.resource import Object
from sandpool.api.views.metadata import View, metadata_of


@dataclass(frozen=True, slots=True)
class NetworkPolicyView(View):
    spec: Object  # shared with the object; must not be changed

    @classmethod
    def from_object(cls, obj: Object) -> NetworkPolicyView:
        return cls(**metadata_of(obj), spec=obj.get("spec") or {})
