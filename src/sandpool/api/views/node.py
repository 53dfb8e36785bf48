"""A Node as controllers see it: whether pods on it are there to stay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sandpool.api import conditions
from sandpool.api.resource import Object
from sandpool.api.views.metadata import View, metadata_of

#: What the cluster autoscaler puts on a node it is about to remove; it does not cordon it.
_TO_BE_DELETED: Final = "ToBeDeletedByClusterAutoscaler"


@dataclass(frozen=True, slots=True)
class NodeView(View):
    cordoned: bool  # nothing new is to be put there; so begins a drain
    ready: bool  # its kubelet is heard of and well; also if nobody has said anything about that

    @property
    def fit(self) -> bool:
        """Whether a pod on it may be expected to stay."""
        return self.ready and not self.cordoned and not self.deleting

    @classmethod
    def from_object(cls, obj: Object) -> NodeView:
        spec = obj.get("spec") or {}
        ready = conditions.find_condition((obj.get("status") or {}).get("conditions") or [], conditions.READY)
        going = any(taint.get("key") == _TO_BE_DELETED for taint in spec.get("taints") or ())
        return cls(
            **metadata_of(obj),
            cordoned=bool(spec.get("unschedulable")) or going,
            ready=ready is None or ready.get("status") == conditions.TRUE,
        )
