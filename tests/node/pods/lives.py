"""Lives of pods played through without anything running: who says what happens, and asks what is to be done."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sandpool.api.resource import Object
from sandpool.engine.clock import timestamp
from sandpool.node.pods.actions import Action
from sandpool.node.pods.decide import decide
from sandpool.node.pods.life import Ending, Life, Moment
from sandpool.node.pods.report import report
from sandpool.node.pods.spec import Pod, ProbeKind
from sandpool.testing.objects import pod

START = datetime(2026, 1, 1, tzinfo=UTC)


class Story:
    """``life`` is how it is; every method makes something happen and returns what is to be done then."""

    def __init__(self, *, metadata: Object | None = None, **spec: Any) -> None:
        fields = {"namespace": "space", "uid": "u-1", **(metadata or {})}
        self.at = 0.0
        self.wake: float | None = None
        self.life = Life.of(Pod.read(pod("pod", spec=spec, metadata=fields)), begun=START)

    @property
    def now(self) -> Moment:
        return Moment(self.at, START + timedelta(seconds=self.at))

    def decide(self) -> list[Action]:
        self.life, agenda = decide(self.life, self.now)
        self.wake = agenda.wake
        return agenda.actions

    def passes(self, seconds: float) -> list[Action]:
        self.at += seconds
        return self.decide()

    def prepared(self) -> list[Action]:
        self.life = self.life.prepared(("10.1.0.1",))
        return self.decide()

    def started(self, name: str = "main") -> list[Action]:
        self.life = self.life.started(name, f"id-{name}", "image", self.now)
        return self.decide()

    def ended(self, code: int = 0, name: str = "main", reason: str = "") -> list[Action]:
        since = self.life[name].since
        reason = reason or ("Error" if code else "Completed")
        began = None if since is None else since.time
        self.life = self.life.ended(name, Ending(code, reason, self.now, began, container_id=f"id-{name}"))
        return self.decide()

    def answered(self, good: bool, kind: ProbeKind, name: str = "main") -> list[Action]:
        self.life = self.life.answered(name, kind, good, self.now)
        return self.decide()

    def becomes(self, **changes: Any) -> list[Action]:
        self.life = replace(self.life, **changes)
        return self.decide()

    def deleted(self, grace: int = 30) -> list[Action]:
        deletion = {"deletionTimestamp": timestamp(self.now.time), "deletionGracePeriodSeconds": grace}
        old = self.life.pod.object
        self.life = self.life.changed(Pod.read({**old, "metadata": {**old["metadata"], **deletion}}))
        return self.decide()

    def status(self, before: Object | None = None) -> Object:
        return report(self.life, self.now, ["192.0.2.1"], before or {})


def container(name: str = "main", **fields: Any) -> Object:
    return {"name": name, "image": "i", **fields}


def running(**spec: Any) -> Story:
    """A pod whose only container runs."""
    story = Story(**spec)
    story.decide()
    story.prepared()
    story.started()
    return story
