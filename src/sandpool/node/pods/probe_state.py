"""Adds up the results of a probe, and schedules the next one.

A result counts when it comes at the probe's period, and the verdict changes when as many results in a row agree as the
threshold asks for. A container that has never succeeded is probed more often than its period says, at pauses that grow
by half from 20 ms: a sandbox that listens after 30 ms should not become ready only after ten seconds. Such early
results count only if they are good, so no container is given up sooner than its author allowed for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from sandpool.node.pods.spec import Probe, ProbeKind

_FIRST_PAUSE: Final = 0.02
_GROWTH: Final = 1.5


@dataclass(frozen=True, slots=True)
class ProbeState:
    """Call ``begin`` when a container starts, then ``sent`` and ``answered`` in turn for every attempt."""

    probe: Probe
    good: bool  # the verdict
    due: float  # when to probe next
    counts_at: float  # when failures start to count
    pause: float | None  # before the next early probe; None once it has succeeded, or if success is assumed
    last: bool | None = None  # the last result that counted
    run: int = 0  # equal results in a row
    in_flight: bool = False
    failed: bool = False  # the container must be stopped; no further probe

    @classmethod
    def begin(cls, probe: Probe, now: float) -> ProbeState:
        """Start probing a container that has just started. Liveness is assumed; startup and readiness must be shown."""
        first, lively = now + probe.initial_delay, probe.kind is ProbeKind.LIVENESS
        return cls(probe, good=lively, due=first, counts_at=first, pause=None if lively else _FIRST_PAUSE)

    @property
    def over(self) -> bool:
        """Whether this run of the container needs no further probe."""
        return self.failed or (self.good and self.probe.kind is ProbeKind.STARTUP)

    def sent(self) -> ProbeState:
        return replace(self, in_flight=True)

    def answered(self, good: bool, now: float) -> ProbeState:
        return self._counted(good, now)._scheduled(now) if self.counts(good, now) else self._scheduled(now)

    def counts(self, good: bool, now: float) -> bool:
        """Whether a result received now changes the count. Early failures do not."""
        return good or now >= self.counts_at

    def resumed(self, now: float) -> ProbeState:
        """Continue after a time in which the container was frozen: what was due meanwhile is due now."""
        return replace(self, in_flight=False, due=max(self.due, now), counts_at=max(self.counts_at, now))

    def warns(self, now: float) -> bool:
        """Whether a failure now is worth a warning. A program that does not serve yet fails its readiness probe in
        every start: that is one only if it was ready before, or if the threshold is reached."""
        if not self.counts(False, now):
            return False
        if self.probe.kind is not ProbeKind.READINESS or self.good:
            return True
        return (self.run if self.last is False else 0) + 1 >= self.probe.failure_threshold

    def _counted(self, good: bool, now: float) -> ProbeState:
        probe = self.probe
        run = self.run + 1 if good == self.last else 1
        reached = run >= (probe.success_threshold if good else probe.failure_threshold)
        result = good if reached else self.good
        return replace(
            self,
            good=result,
            last=good,
            run=run,
            counts_at=now + probe.period,
            pause=None if good else self.pause,
            failed=reached and not good and probe.kind is not ProbeKind.READINESS,
        )

    def _scheduled(self, now: float) -> ProbeState:
        if self.pause is None:
            return replace(self, in_flight=False, due=self.counts_at)
        return replace(self, in_flight=False, due=min(self.counts_at, now + self.pause), pause=self.pause * _GROWTH)
