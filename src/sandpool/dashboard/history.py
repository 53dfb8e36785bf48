"""The last half hour of the board: levels of pools, claims, warm starts and controller metrics, sampled regularly."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import Any, Final

from sandpool.dashboard.board import Board
from sandpool.dashboard.controller_metrics import ControllerMetrics
from sandpool.engine.clock import Clock
from sandpool.service.usage import Sample, Usage

#: Seconds between two samples, and how many are kept.
INTERVAL: Final = 5.0
LENGTH: Final = 360


class History:
    """Samples the board while ``run`` runs. A sample has the fields of ``_sample``, which are sent as they are."""

    def __init__(self, board: Board, metrics: ControllerMetrics, clock: Clock) -> None:
        self.board = board
        self.metrics = metrics
        self.clock = clock
        self.samples: deque[dict[str, Any]] = deque(maxlen=LENGTH)

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            await self.metrics.refresh()
            self.samples.append(self.sample())
            await self.clock.sleep(INTERVAL)

    def sample(self) -> dict[str, Any]:
        """The board now, in numbers. Counters count since the dashboard started, those of the controllers since they
        did."""
        waiting, held = Counter[str](), Counter[str]()
        for key, claim in self.board.caches["claims"].items():
            pool = f"{key.namespace}/{claim.pool}"
            (held if claim.sandbox else waiting)[pool] += 1
        launches = self.board.launches.by_pool
        pools = {
            str(key): [
                row.ready,
                row.desired,
                row.members,
                row.updated,
                held[str(key)],
                waiting[str(key)],
                *launches[str(key)],
                row.updatedReady,
            ]
            for key, row in self.board.caches["pools"].items()
        }
        return {"at": round(self.clock.now().timestamp(), 1), "pools": pools, "metrics": self.metrics.latest}


class UsageSampler:
    """CPU and memory of sandboxes: the difference of two samples. It is read only while a browser shows it."""

    def __init__(self, board: Board, usage: Usage) -> None:
        self.board = board
        self.usage = usage
        self._before: Sample | None = None

    async def read(self) -> Mapping[str, Any]:
        """CPUs and bytes by ``namespace/sandbox``, and what could not be read."""
        sample = await self.usage.sample(self.board.nodes)
        before, self._before = self._before, sample
        found: dict[str, tuple[float | None, int]] = {}
        for key, row in self.board.caches["sandboxes"].items():
            pod = (key.namespace, row.pod)
            if (used := sample.pods.get(pod)) is not None:
                cores = None if before is None else sample.cores(pod, before)
                found[str(key)] = (None if cores is None else round(cores, 4), used.memory)
        return {"sandboxes": found, "problems": sample.problems[:3]}
