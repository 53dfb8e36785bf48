"""Views of the built-in kinds of which little is read: Namespace, NetworkPolicy, PersistentVolumeClaim and Service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sandpool.api.resource import SharedObject
from sandpool.api.views.metadata import View, metadata_of


@dataclass(frozen=True, slots=True)
class NamespaceView(View):
    """The annotations of a Namespace limit what is in it."""

    @classmethod
    def from_object(cls, obj: SharedObject) -> NamespaceView:
        return cls(**metadata_of(obj))


@dataclass(frozen=True, slots=True)
class NetworkPolicyView(View):
    spec: SharedObject

    @classmethod
    def from_object(cls, obj: SharedObject) -> NetworkPolicyView:
        return cls(**metadata_of(obj), spec=obj.get("spec") or {})


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


@dataclass(frozen=True, slots=True)
class VolumeClaimView(View):
    """The metadata of a PersistentVolumeClaim have its owner."""

    @classmethod
    def from_object(cls, obj: SharedObject) -> VolumeClaimView:
        return cls(**metadata_of(obj))
