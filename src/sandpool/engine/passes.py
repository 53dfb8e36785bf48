"""Passes over objects as lines of a log, beside what they asked of the API: the other half of a timeline.

A pass that writes nothing leaves nothing in an audit log, and of one that does the log cannot tell when it began.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, NamedTuple

import orjson

from sandpool.engine.clock import micro_timestamp


class Pass(NamedTuple):
    """One that has ended. ``controller`` is the name of the controller that made it."""

    controller: str
    namespace: str
    name: str
    ended: datetime
    seconds: float
    requeue_after: float | None
    problem: str  # what it failed with; empty: it did not

    def line(self) -> bytes:
        entry: dict[str, Any] = {
            "time": micro_timestamp(self.ended - timedelta(seconds=self.seconds)),
            "pass": self.controller,
            "namespace": self.namespace,
            "name": self.name,
            "ms": round(self.seconds * 1000, 3),
        }
        if self.requeue_after is not None:
            entry["requeueAfter"] = round(self.requeue_after, 3)
        if self.problem:
            entry["problem"] = self.problem
        return orjson.dumps(entry) + b"\n"
