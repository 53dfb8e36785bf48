"""Invariants of the plan for random orders of observations.

No action is requested twice, no container is started while the pod is stopping, and a deleted pod ends.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from sandpool.api.labels import FREEZE_WHILE_WARM, WARM_POOL
from sandpool.node.pods.actions import (
    Action,
    Discard,
    Freeze,
    Kill,
    PostStart,
    Prepare,
    PreStop,
    Release,
    RunProbe,
    Signal,
    Start,
    Thaw,
)
from sandpool.node.pods.state import ContainerPhase, FailureReason
from tests.node.pods.states import Story, container

if TYPE_CHECKING:
    from hypothesis.strategies import DataObject

HOOKS = {"postStart": {"exec": {"command": ["a"]}}, "preStop": {"exec": {"command": ["b"]}}}
TCP = {"tcpSocket": {"port": 80}}
WARM = {"annotations": {FREEZE_WHILE_WARM: "true"}, "labels": {WARM_POOL: "abc"}}


class Chaos:
    """Random outcomes of actions at random times."""

    def __init__(self, data: DataObject) -> None:
        self.data = data
        init = [container("init"), container("side", restartPolicy="Always", startupProbe=TCP)]
        main = [container("main", lifecycle=HOOKS, readinessProbe=TCP, livenessProbe=TCP), container("other")]
        self.story = Story(
            metadata=WARM if self.yes() else {},
            initContainers=init[: self.pick(0, 2)],
            containers=main[: self.pick(1, 2)],
            restartPolicy=data.draw(st.sampled_from(["Always", "OnFailure", "Never"])),
            activeDeadlineSeconds=data.draw(st.sampled_from([None, 30])),
        )
        self.open: list[Action] = []  # begun and not ended
        self.discarded = False

    def yes(self) -> bool:
        return self.data.draw(st.booleans())

    def pick(self, least: int, most: int) -> int:
        return self.data.draw(st.integers(least, most))

    def note(self, actions: list[Action]) -> None:
        for action in actions:
            # An action may repeat for the next run of a container, never within one run.
            assert action not in self.open, f"{action} is begun while it is under way"
            if isinstance(action, Start):
                assert not self.story.state.stopping, "something is started that is being stopped"
                assert not any(isinstance(each, Start) for each in self.open), "two are started at once"
                assert self.story.state.preparation.done
            if isinstance(action, Release | Discard):
                assert not [
                    each for each in self.story.state.containers.values() if each.phase is ContainerPhase.RUNNING
                ]
            self.open.append(action)
        self.story.status()

    def step(self) -> None:
        """Feed one random observation."""
        choices = ["time", "end"] + (["finish"] * 3 if self.open else [])
        match self.data.draw(st.sampled_from(choices)):
            case "time":
                self.note(self.story.passes(self.data.draw(st.sampled_from([0.05, 1.0, 12.0]))))
            case "end":
                self.end_one()
            case "finish":
                self.finish(self.open.pop(self.pick(0, len(self.open) - 1)), good=self.yes())

    def running(self) -> list[str]:
        return [name for name, each in self.story.state.containers.items() if each.phase is ContainerPhase.RUNNING]

    def end_one(self) -> None:
        if names := self.running():
            self.end(names[self.pick(0, len(names) - 1)], self.pick(0, 1))

    def end(self, name: str, code: int) -> None:
        # Actions in progress end with their container.
        self.open = [
            each
            for each in self.open
            if not (isinstance(each, RunProbe | PostStart | PreStop | Signal | Kill) and each.name == name)
        ]
        self.note(self.story.ended(code, name))

    def finish(self, action: Action, *, good: bool) -> None:
        story, state, now = self.story, self.story.state, self.story.now
        match action:
            case Prepare():
                state = (
                    state.prepared(("10.1.0.1",)) if good else state.not_prepared(FailureReason("FailedMount", ""), now)
                )
            case Start(name):
                failed = FailureReason("ErrImagePull", "")
                state = (
                    state.started(name, f"{name}-{now.at}", "i", now) if good else state.not_started(name, failed, now)
                )
            case PostStart(name):
                state = state.hook_done(name) if good else state.hook_failed(name, now)
            case PreStop(name):
                state = state.stop_hook_done(name, now)
            case RunProbe(name, kind):
                state = state.answered(name, kind, good, now)
            case Signal(name) | Kill(name):
                if name in self.running() and (good or isinstance(action, Kill)):
                    self.end(name, 143)
                    return
            case Freeze():
                state = state.froze()
            case Thaw():
                state = state.thawed(now)
            case Release():
                state = state.cleared()
            case Discard():
                state, self.discarded = replace(state, discarded=True, releasing=False), True
        story.state = state
        self.note(story.compute_plan())


@given(st.data())
def test_plan_invariants_hold_for_any_order_of_observations(data: DataObject) -> None:
    chaos = Chaos(data)
    chaos.note(chaos.story.compute_plan())
    for _ in range(chaos.pick(0, 40)):
        chaos.step()
    chaos.note(chaos.story.deleted(chaos.pick(0, 5)))
    for _ in range(60):
        if chaos.discarded:
            break
        if chaos.open:
            chaos.finish(chaos.open.pop(0), good=True)
        else:
            chaos.note(chaos.story.passes(5.0))
    assert chaos.discarded, f"it does not go: {chaos.story.state}"
