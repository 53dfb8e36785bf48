"""View of a SandboxWarmPool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sandpool.api.conditions import Condition
from sandpool.api.resource import SharedObject
from sandpool.api.views.metadata import View, metadata_of


@dataclass(frozen=True, slots=True)
class WarmPoolStatus:
    replicas: int = 0
    ready_replicas: int = 0
    updated_replicas: int = 0
    updated_ready_replicas: int = 0
    selector: str = ""
    observed_generation: int = 0
    conditions: Sequence[Condition] = field(default_factory=list)

    @classmethod
    def from_object(cls, status: SharedObject) -> WarmPoolStatus:
        return cls(
            replicas=status.get("replicas") or 0,
            ready_replicas=status.get("readyReplicas") or 0,
            updated_replicas=status.get("updatedReplicas") or 0,
            updated_ready_replicas=status.get("updatedReadyReplicas") or 0,
            selector=status.get("selector") or "",
            observed_generation=status.get("observedGeneration") or 0,
            conditions=status.get("conditions") or [],
        )


@dataclass(frozen=True, slots=True)
class WarmPoolView(View):
    replicas: int
    template: str
    strategy: str  # empty means OnReplenish
    # Amounts or percentages as specified; None if unset.
    max_unavailable: int | str | None
    max_surge: int | str | None
    status: WarmPoolStatus

    @classmethod
    def from_object(cls, obj: SharedObject) -> WarmPoolView:
        spec = obj.get("spec") or {}
        replicas = spec.get("replicas")
        strategy = spec.get("updateStrategy") or {}
        rolling = strategy.get("rollingUpdate") or {}
        return cls(
            **metadata_of(obj),
            replicas=1 if replicas is None else replicas,
            template=(spec.get("sandboxTemplateRef") or {}).get("name") or "",
            strategy=strategy.get("type") or "",
            max_unavailable=rolling.get("maxUnavailable"),
            max_surge=rolling.get("maxSurge"),
            status=WarmPoolStatus.from_object(obj.get("status") or {}),
        )
