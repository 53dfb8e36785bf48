"""View of a SandboxClaim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from sys import intern
from typing import Any, Final

from sandpool.api.conditions import READY, TRUE, Condition, find_condition
from sandpool.api.resource import Object, SharedObject
from sandpool.api.views.metadata import View, metadata_of
from sandpool.api.views.times import parse_time

_NOTHING: Final[Mapping[str, Any]] = {}
_SPEC: Final = ("warmPoolRef", "lifecycle", "additionalPodMetadata", "env", "volumeClaimTemplates")
_STATUS: Final = ("conditions", "sandbox")


@dataclass(frozen=True, slots=True)
class Lifecycle:
    shutdown_time: datetime | None
    ttl_seconds_after_finished: int | None
    shutdown_policy: str  # empty means Retain


@dataclass(frozen=True, slots=True)
class ClaimView(View):
    warm_pool: str
    lifecycle: Lifecycle | None
    additional_labels: Mapping[str, str]
    additional_annotations: Mapping[str, str]
    # Shared with the object; must not be changed.
    env: Sequence[SharedObject]
    volume_claim_templates: Sequence[SharedObject]
    # The status.
    conditions: Sequence[Condition]
    sandbox_name: str  # the assigned sandbox; empty before the assignment
    pod_ips: tuple[str, ...]

    def condition(self, type: str) -> Condition | None:
        return find_condition(self.conditions, type)

    def reason(self, type: str) -> str:
        """The reason of a condition; empty if the condition is absent."""
        condition = find_condition(self.conditions, type)
        return condition["reason"] if condition is not None else ""

    @property
    def ready(self) -> bool:
        condition = find_condition(self.conditions, READY)
        return condition is not None and condition["status"] == TRUE

    @classmethod
    def from_object(cls, obj: SharedObject) -> ClaimView:
        spec = obj.get("spec") or {}
        status = obj.get("status") or {}
        pool, lifecycle, additional, env, volumes = map(spec.get, _SPEC)
        conditions, sandbox = map(status.get, _STATUS)
        additional, sandbox = additional or _NOTHING, sandbox or _NOTHING
        return cls(
            **metadata_of(obj),
            warm_pool=intern((pool or _NOTHING).get("name") or ""),
            lifecycle=None if lifecycle is None else _lifecycle(lifecycle),
            additional_labels=additional.get("labels") or _NOTHING,
            additional_annotations=additional.get("annotations") or _NOTHING,
            env=env or [],
            volume_claim_templates=volumes or [],
            conditions=conditions or [],
            sandbox_name=sandbox.get("name") or "",
            pod_ips=tuple(sandbox.get("podIPs") or ()),
        )


def _lifecycle(lifecycle: Object) -> Lifecycle:
    return Lifecycle(
        shutdown_time=parse_time(lifecycle.get("shutdownTime")),
        ttl_seconds_after_finished=lifecycle.get("ttlSecondsAfterFinished"),
        shutdown_policy=lifecycle.get("shutdownPolicy") or "",
    )
