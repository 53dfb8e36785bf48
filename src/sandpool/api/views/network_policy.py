"""A NetworkPolicy as controllers see it."""

from __future__ import annotations

from dataclasses import dataclass

from sandpool.api.resource import Object
from sandpool.api.views.metadata import View, metadata_of


@dataclass(frozen=True, slots=True)
class NetworkPolicyView(View):
    spec: Object  # part of the object itself, never to be changed

    @classmethod
    def from_object(cls, obj: Object) -> NetworkPolicyView:
        return cls(**metadata_of(obj), spec=obj.get("spec") or {})
