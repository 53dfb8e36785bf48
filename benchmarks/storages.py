"""The two storages side by side: the same load on clusters with each, alternating, on one machine."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final, get_args

from benchmarks.installation import CONTROLLER, installation
from benchmarks.targets import thirds
from sandpool.bench.accounting import CONTROLLERS
from sandpool.bench.claims import Report, measure
from sandpool.bench.figures import grid, percentile
from sandpool.bench.load import Tell
from sandpool.bench.scenarios import Bursts, Scenario, Stream
from sandpool.engine.clock import SystemClock
from sandpool.install.storage import Storage

# Seconds after which an unserved claim counts as lost.
_TIMEOUT: Final = 300.0


@dataclass(frozen=True, slots=True)
class Claims:
    """The load: claims at once, and claims per second for some seconds, each from a pool."""

    burst: int
    pool: int
    rate: float
    seconds: float
    seed: int


@dataclass(frozen=True, slots=True)
class Round:
    """The figures of one cluster, by name. Latencies are in milliseconds, and so is CPU time per claim, with the
    replacement of its sandbox."""

    storage: Storage
    figures: dict[str, float]


async def storage_rounds(claims: Claims, rounds: int, flags: Sequence[str], tell: Tell) -> list[Round]:
    """Measure ``rounds`` clusters with each storage, one after the other."""
    found = []
    for number in range(1, rounds + 1):
        for storage in get_args(Storage):

            def telling(text: str, prefix: str = f"{storage} {number}") -> None:
                tell(f"{prefix}: {text}")

            found.append(Round(storage, await _measured(claims, storage, flags, telling)))
    return found


async def _measured(claims: Claims, storage: Storage, flags: Sequence[str], tell: Tell) -> dict[str, float]:
    clock, rng = SystemClock(), Random(claims.seed)
    with tempfile.TemporaryDirectory(prefix="sandpool-bench-") as directory:
        async with installation(Path(directory), clock, tell, storage=storage, flags=flags) as there:
            stream = Stream(claims.rate, claims.seconds, claims.seconds)
            scenarios = (
                Scenario("burst", Bursts(claims.burst), claims.pool, patience=_TIMEOUT),
                Scenario("sustained", stream, claims.pool, patience=_TIMEOUT),
            )
            burst, sustained = [
                await there.working(measure(there.place, scenario, clock, rng, tell)) for scenario in scenarios
            ]
    return {**_figures("burst", burst), **_figures("sustained", sustained), **_flatness(sustained)}


def _figures(name: str, report: Report) -> dict[str, float]:
    served = len(report.outcome.latencies)
    cpu = {who: report.per_claim(used) * 1e3 for who, used in report.used.cpu.items()}
    return {
        f"{name}: p50": report.latency(50),
        f"{name}: p99": report.latency(99),
        f"{name}: unserved": float(report.count - served),
        f"{name}: cold": float(report.cold),
        f"{name}: conflicts": float(report.request_counts.conflicts[CONTROLLERS]),
        f"{name}: CPU of kube-apiserver": cpu["kube-apiserver"],
        f"{name}: CPU of etcd": cpu["etcd"],
        f"{name}: CPU of Sandpool": cpu[CONTROLLER],
    }


def _flatness(report: Report) -> dict[str, float]:
    first, last = thirds(report.outcome)
    waits = [[claim.latency for claim in part if claim.latency is not None] for part in (first, last)]
    ratio = percentile(waits[1], 50) / percentile(waits[0], 50) if all(waits) else float("inf")
    return {"sustained: p50 of the last third to that of the first": ratio}


def comparison_table(rounds: Sequence[Round]) -> str:
    """One column for each storage, with the value of each round."""
    storages = list(dict.fromkeys(each.storage for each in rounds))
    rows = [("", *storages)]
    for name in rounds[0].figures:
        cells = (
            ", ".join(_shown(each.figures[name]) for each in rounds if each.storage == storage) for storage in storages
        )
        rows.append((name, *cells))
    return grid(rows)


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"
