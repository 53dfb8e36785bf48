"""What a probe's answers add up to, and when it asks next.

An answer counts when it comes at its period, and the result turns when as many in a row say so as the threshold wants.
A container that has never passed is asked more often than its period says, at pauses that grow by half from 20 ms: a
sandbox that listens after 30 ms should not be found ready after ten seconds. Such early answers count only if they are
good, so nothing is given up sooner than the pod's author allowed for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from sandpool.node.pods.spec import Probe, ProbeKind

_FIRST_PAUSE: Final = 0.02
_GROWTH: Final = 1.5


@dataclass(frozen=True, slots=True)
class ProbeState:
    """``begin`` it when a container runs, ``asked`` and ``answered`` for every question, in turn."""

    probe: Probe
    good: bool  # the result
    due: float  # when to ask next
    counts_at: float  # from when on a bad answer counts
    pause: float | None  # before the next early question; None: it has passed before, or never had to
    last: bool | None = None  # the last answer that counted
    run: int = 0  # how many in a row that were like it
    asking: bool = False
    failed: bool = False  # the container is to be ended: this probe asks no more

    @classmethod
    def begin(cls, probe: Probe, now: float) -> ProbeState:
        """Of a container that runs from now on. Liveness is assumed, the other two are to be shown."""
        first, lively = now + probe.initial_delay, probe.kind is ProbeKind.LIVENESS
        return cls(probe, good=lively, due=first, counts_at=first, pause=None if lively else _FIRST_PAUSE)

    @property
    def over(self) -> bool:
        """It will never ask again, of this run of the container."""
        return self.failed or (self.good and self.probe.kind is ProbeKind.STARTUP)

    def asked(self) -> ProbeState:
        return replace(self, asking=True)

    def answered(self, good: bool, now: float) -> ProbeState:
        return self._counted(good, now)._scheduled(now) if self.counts(good, now) else self._scheduled(now)

    def counts(self, good: bool, now: float) -> bool:
        return good or now >= self.counts_at

    def resumed(self, now: float) -> ProbeState:
        """After a time in which nobody could answer: what was due meanwhile is asked now."""
        return replace(self, asking=False, due=max(self.due, now), counts_at=max(self.counts_at, now))

    def _counted(self, good: bool, now: float) -> ProbeState:
        probe = self.probe
        run = self.run + 1 if good == self.last else 1
        turns = run >= (probe.success_threshold if good else probe.failure_threshold)
        result = good if turns else self.good
        return replace(
            self,
            good=result,
            last=good,
            run=run,
            counts_at=now + probe.period,
            pause=None if good else self.pause,
            failed=turns and not good and probe.kind is not ProbeKind.READINESS,
        )

    def _scheduled(self, now: float) -> ProbeState:
        if self.pause is None:
            return replace(self, asking=False, due=self.counts_at)
        return replace(self, asking=False, due=min(self.counts_at, now + self.pause), pause=self.pause * _GROWTH)
