"""Claims in all kinds of trouble, as their objects show it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sandpool.api import labels
from sandpool.api.resource import Object
from sandpool.api.views import ClaimView, SandboxView, WarmPoolView
from sandpool.explain.observed import EventView, IdleContainer, Observed
from tests.support.claim_objects import CREATED_AT, claim, warm_pool
from tests.support.sandbox_objects import sandbox

ARRIVED = datetime(2026, 11, 1, 12, tzinfo=UTC)


def condition(type: str, status: str, reason: str, message: str = "", since: str = CREATED_AT) -> Object:
    return {"type": type, "status": status, "reason": reason, "message": message, "lastTransitionTime": since}


def claim_with(*conditions: Object, sandbox: str = "", spec: Object | None = None, **metadata: Any) -> ClaimView:
    status: Object = {"conditions": list(conditions)}
    if sandbox:
        status["sandbox"] = {"name": sandbox}
    return ClaimView.from_object(claim("mine", metadata=metadata, spec=spec or {}, status=status))


def pool_with(*conditions: Object, ready: int = 0) -> WarmPoolView:
    return WarmPoolView.from_object(warm_pool(status={"readyReplicas": ready, "conditions": list(conditions)}))


def box_with(
    *conditions: Object,
    launch: str = labels.LAUNCH_WARM,
    node: str = "node-1",
    ips: Sequence[str] = (),
    **metadata: Any,
) -> SandboxView:
    """A sandbox that the claim owns."""
    made = sandbox(
        "box",
        owner=claim("mine"),
        metadata={"creationTimestamp": CREATED_AT, "labels": {labels.LAUNCH_TYPE: launch}, **metadata},
        status={"conditions": list(conditions), "nodeName": node, "podIPs": list(ips)},
    )
    return SandboxView.from_object(made)


def pod_event(
    reason: str, note: str = "", *, seconds: float = 1, name: str = "box", type: str = "Normal", container: str = "main"
) -> EventView:
    """An event of a kubelet about a container of a pod."""
    at = ARRIVED + timedelta(seconds=seconds)
    return EventView("Pod", name, "some-uid", type, reason, note, at, field_path=f"spec.containers{{{container}}}")


def pod_warning(reason: str, note: str, *, seconds: float = 1, name: str = "box", type: str = "Warning") -> EventView:
    return pod_event(reason, note, seconds=seconds, name=name, type=type)


def scene(claim: ClaimView, *, after: float = 3, **seen: Any) -> Observed:
    return Observed(ARRIVED + timedelta(seconds=after), claim, **{"pool": pool_with(), "has_template": True, **seen})


def container(reason: str, message: str = "", restarts: int = 0) -> IdleContainer:
    return IdleContainer("main", reason, message, restarts)
