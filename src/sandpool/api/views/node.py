"""View of a Node: whether its pods can be expected to stay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sandpool.api import conditions
from sandpool.api.resource import SharedObject
from sandpool.api.views.metadata import View, metadata_of

#: Taint of the cluster autoscaler on a node that it is about to remove without cordoning it.
_TO_BE_DELETED: Final = "ToBeDeletedByClusterAutoscaler"


@dataclass(frozen=True, slots=True)
class NodeView(View):
    cordoned: bool  # unschedulable; a drain begins with this
    ready: bool  # the Ready condition is True or absent

    @property
    def fit(self) -> bool:
        """Whether pods on this node can be expected to stay."""
        return self.ready and not self.cordoned and not self.deleting

    @classmethod
    def from_object(cls, obj: SharedObject) -> NodeView:
        spec = obj.get("spec") or {}
        ready = conditions.find_condition((obj.get("status") or {}).get("conditions") or [], conditions.READY)
        going = any(taint.get("key") == _TO_BE_DELETED for taint in spec.get("taints") or ())
        return cls(
            **metadata_of(obj),
            cordoned=bool(spec.get("unschedulable")) or going,
            ready=ready is None or ready.get("status") == conditions.TRUE,
        )
