"""View of a Sandbox."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from sys import intern
from typing import Final

from sandpool.api import labels
from sandpool.api.conditions import READY, TRUE, Condition, find_condition
from sandpool.api.resource import Object, SharedObject
from sandpool.api.sandbox import DELETE, SUSPENDED
from sandpool.api.views.metadata import View, metadata_of
from sandpool.api.views.sharing import Shared
from sandpool.api.views.times import parse_time

_pod_template: Final = Shared[Object](1024)
_volumes: Final = Shared[list[Object]](1024)
# Sandboxes that became ready in the same second have equal conditions.
_condition: Final = Shared[Condition](4096)


@dataclass(frozen=True, slots=True)
class SandboxStatus:
    """The complete status: the controller replaces it as a whole."""

    conditions: Sequence[Condition] = field(default_factory=list)
    node_name: str = ""
    pod_ips: tuple[str, ...] = ()
    selector: str = ""
    service: str = ""
    service_fqdn: str = ""
    # Kept, because a reconcile of a pool reads them several times per member.
    ready: bool = field(init=False, compare=False)
    ready_reason: str = field(init=False, compare=False)  # empty without the condition

    def __post_init__(self) -> None:
        ready = find_condition(self.conditions, READY)
        object.__setattr__(self, "ready", ready is not None and ready["status"] == TRUE)
        object.__setattr__(self, "ready_reason", "" if ready is None else ready["reason"])

    def condition(self, type: str) -> Condition | None:
        return find_condition(self.conditions, type)

    def reason(self, type: str) -> str:
        """The reason of a condition; empty if the condition is absent."""
        condition = find_condition(self.conditions, type)
        return condition["reason"] if condition is not None else ""

    @classmethod
    def from_object(cls, status: SharedObject) -> SandboxStatus:
        if not status:
            return _NO_STATUS
        conditions, node_name, pod_ips, selector, service, service_fqdn = map(status.get, _STATUS)
        return cls(
            conditions=[_condition(condition) for condition in conditions or ()],
            node_name=intern(node_name or ""),
            pod_ips=tuple(pod_ips or ()),
            selector=selector or "",
            service=service or "",
            service_fqdn=service_fqdn or "",
        )

    def to_object(self) -> Object:
        """The status as the API stores it, without empty fields."""
        members = {
            "conditions": self.conditions,
            "nodeName": self.node_name,
            "podIPs": list(self.pod_ips),
            "selector": self.selector,
            "service": self.service,
            "serviceFQDN": self.service_fqdn,
        }
        return {name: value for name, value in members.items() if value}


_NO_STATUS: Final = SandboxStatus()
_STATUS: Final = ("conditions", "nodeName", "podIPs", "selector", "service", "serviceFQDN")
_SPEC: Final = ("podTemplate", "volumeClaimTemplates", "service", "shutdownTime", "shutdownPolicy", "operatingMode")


@dataclass(frozen=True, slots=True)
class SandboxView(View):
    # Shared with the object; must be copied before a change.
    pod_template: SharedObject
    volume_claim_templates: Sequence[SharedObject]
    service: bool | None  # None: an existing Service is kept, none is created
    shutdown_time: datetime | None
    shutdown_policy: str
    operating_mode: str
    status: SandboxStatus

    @property
    def suspended(self) -> bool:
        """Whether the desired mode is Suspended. All other modes, including unknown ones, mean Running."""
        return self.operating_mode == SUSPENDED

    @property
    def asleep(self) -> bool:
        """Whether it was suspended because it was not used, so that the next request resumes it."""
        return self.suspended and labels.ASLEEP_SINCE in self.annotations

    @property
    def deleted_on_expiry(self) -> bool:
        return self.shutdown_policy == DELETE

    @property
    def ready(self) -> bool:
        return self.status.ready

    @property
    def pod_name(self) -> str:
        """The name of the pod: the sandbox's own name unless an annotation overrides it."""
        return self.annotations.get(labels.POD_NAME) or self.name

    @classmethod
    def from_object(cls, obj: SharedObject) -> SandboxView:
        template, volumes, service, shutdown_time, shutdown_policy, mode = map((obj.get("spec") or {}).get, _SPEC)
        return cls(
            **metadata_of(obj),
            pod_template=_pod_template(template) if template else {},
            volume_claim_templates=_volumes(volumes) if volumes else [],
            service=service,
            shutdown_time=parse_time(shutdown_time),
            shutdown_policy=shutdown_policy or "",
            operating_mode=mode or "",
            status=SandboxStatus.from_object(obj.get("status") or {}),
        )
