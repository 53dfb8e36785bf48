"""View of a Service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sandpool.api.resource import SharedObject
from sandpool.api.views.metadata import View, metadata_of


@dataclass(frozen=True, slots=True)
class ServiceView(View):
    cluster_ip: str
    selector: Mapping[str, str]
    ports: Sequence[SharedObject]

    @classmethod
    def from_object(cls, obj: SharedObject) -> ServiceView:
        spec = obj.get("spec") or {}
        return cls(
            **metadata_of(obj),
            cluster_ip=spec.get("clusterIP") or "",
            selector=spec.get("selector") or {},
            ports=spec.get("ports") or [],
        )
