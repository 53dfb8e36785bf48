"""View of a Service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sandpool.api.resource import Object
from sandpool.api.views.metadata import View, metadata_of


@dataclass(frozen=True, slots=True)
class ServiceView(View):
    cluster_ip: str
    selector: Mapping[str, str]
    ports: list[Object]

    @classmethod
    def from_object(cls, obj: Object) -> ServiceView:
        spec = obj.get("spec") or {}
        return cls(
            **metadata_of(obj),
            cluster_ip=spec.get("clusterIP") or "",
            selector=spec.get("selector") or {},
            ports=spec.get("ports") or [],
        )
