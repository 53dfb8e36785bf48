"""Plays a pod through its states without running anything: tests feed observations and read the plan."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sandpool.api.resource import Object
from sandpool.engine.clock import timestamp
from sandpool.node.pods.actions import Action
from sandpool.node.pods.plan import compute_plan
from sandpool.node.pods.pod_status import compute_pod_status
from sandpool.node.pods.spec import Pod, ProbeKind
from sandpool.node.pods.state import Moment, PodState, Termination
from sandpool.testing.objects import pod

START = datetime(2026, 1, 1, tzinfo=UTC)


class Story:
    """``state`` is the current state. Every method feeds one observation and returns the actions of the new plan."""

    def __init__(self, *, metadata: Object | None = None, **spec: Any) -> None:
        fields = {"namespace": "space", "uid": "u-1", **(metadata or {})}
        self.at = 0.0
        self.requeue_at: float | None = None
        self.state = PodState.of(Pod.read(pod("pod", spec=spec, metadata=fields)), start_time=START)

    @property
    def now(self) -> Moment:
        return Moment(self.at, START + timedelta(seconds=self.at))

    def compute_plan(self) -> list[Action]:
        self.state, plan = compute_plan(self.state, self.now)
        self.requeue_at = plan.requeue_at
        return plan.actions

    def passes(self, seconds: float) -> list[Action]:
        self.at += seconds
        return self.compute_plan()

    def prepared(self) -> list[Action]:
        self.state = self.state.prepared(("10.1.0.1",))
        return self.compute_plan()

    def started(self, name: str = "main") -> list[Action]:
        self.state = self.state.started(name, f"id-{name}", "image", self.now)
        return self.compute_plan()

    def ended(self, code: int = 0, name: str = "main", reason: str = "") -> list[Action]:
        since = self.state[name].since
        reason = reason or ("Error" if code else "Completed")
        began = None if since is None else since.time
        self.state = self.state.ended(name, Termination(code, reason, self.now, began, container_id=f"id-{name}"))
        return self.compute_plan()

    def answered(self, good: bool, kind: ProbeKind, name: str = "main") -> list[Action]:
        self.state = self.state.answered(name, kind, good, self.now)
        return self.compute_plan()

    def becomes(self, **changes: Any) -> list[Action]:
        self.state = replace(self.state, **changes)
        return self.compute_plan()

    def deleted(self, grace: int = 30) -> list[Action]:
        deletion = {"deletionTimestamp": timestamp(self.now.time), "deletionGracePeriodSeconds": grace}
        old = self.state.pod.object
        self.state = self.state.changed(Pod.read({**old, "metadata": {**old["metadata"], **deletion}}))
        return self.compute_plan()

    def status(self, before: Object | None = None) -> Object:
        return compute_pod_status(self.state, self.now, ["192.0.2.1"], before or {})


def container(name: str = "main", **fields: Any) -> Object:
    return {"name": name, "image": "i", **fields}


def running(**spec: Any) -> Story:
    """A pod whose only container runs."""
    story = Story(**spec)
    story.compute_plan()
    story.prepared()
    story.started()
    return story
