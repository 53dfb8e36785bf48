"""The two storages side by side: the same load on clusters with each, alternating, on one machine.

A round is a burst, a sustained load, a search for the highest rate of claims that are deleted again, and a restart of
the process. Targets are those of the storage ``aggregated``, and each round of it has to reach them.
"""

from __future__ import annotations

import operator
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Final, get_args

from benchmarks.installation import CONTROLLER, Installation, installation
from benchmarks.restart import first_claim
from benchmarks.targets import FLAT, thirds, violations
from sandpool.bench.accounting import CONTROLLERS
from sandpool.bench.claims import Report, measure
from sandpool.bench.figures import Figure, grid, percentile
from sandpool.bench.load import Show
from sandpool.bench.scenarios import Bursts, Scenario, Stream
from sandpool.engine.clock import SystemClock
from sandpool.install.storage import Storage

# Seconds after which an unserved claim counts as lost.
_TIMEOUT: Final = 300.0
#: Seconds for which a claim of the search for a rate lives once it is ready.
LIFETIME: Final = 5.0
#: The largest 99th percentile, in milliseconds, at which a rate counts as sustained.
SUSTAINED_P99: Final = 500.0


@dataclass(frozen=True, slots=True)
class Target:
    """The figure of each round must be at most, or at least, ``bound``."""

    bound: float
    at_least: bool = False

    @property
    def shown(self) -> str:
        return f"{'>=' if self.at_least else '<='} {_shown(self.bound)}"

    def reached(self, value: float) -> bool:
        compare: Callable[[float, float], bool] = operator.ge if self.at_least else operator.le
        return compare(value, self.bound)


HIGHEST_RATE: Final = "highest rate, claims/s with deletions"
RESTARTED: Final = "restart: first claim after, s"
#: Of the storage ``aggregated``, by figure.
TARGETS: Final = {
    "burst: p50": Target(300),
    "burst: p99": Target(500),
    "burst: unserved": Target(0),
    "burst: cold": Target(0),
    "burst: conflicts": Target(0),
    "burst: CPU of kube-apiserver until Ready": Target(2),
    "sustained: p50": Target(40),
    "sustained: p99": Target(200),
    "sustained: unserved": Target(0),
    "sustained: conflicts": Target(0),
    "sustained: p50 of the last third to that of the first": Target(FLAT),
    HIGHEST_RATE: Target(45, at_least=True),
    RESTARTED: Target(2),
}


@dataclass(frozen=True, slots=True)
class Claims:
    """The load: claims at once, and claims per second for some seconds, each from a pool. The rates are tried one after
    the other. Without ``sandboxes`` nothing is restarted."""

    burst: int
    pool: int
    rate: float
    seconds: float
    seed: int
    rates: tuple[float, ...] = ()
    sandboxes: int = 0


@dataclass(frozen=True, slots=True)
class Round:
    """The figures of one cluster, by name. Latencies are in milliseconds, and so is CPU time per claim, with the
    replacement of its sandbox."""

    storage: Storage
    figures: dict[str, float]
    reports: tuple[Report, ...] = ()
    wrong: tuple[str, ...] = ()


async def storage_rounds(claims: Claims, rounds: int, flags: Sequence[str], show: Show) -> list[Round]:
    """Measure ``rounds`` clusters with each storage, one after the other. The first of each is restarted."""
    found = []
    for number in range(1, rounds + 1):
        for storage in get_args(Storage):

            def telling(text: str, prefix: str = f"{storage} {number}") -> None:
                show(f"{prefix}: {text}")

            load = claims if number == 1 else replace(claims, sandboxes=0)
            found.append(await _measured(load, storage, number, flags, telling))
    return found


async def _measured(claims: Claims, storage: Storage, number: int, flags: Sequence[str], show: Show) -> Round:
    clock, rng = SystemClock(), Random(claims.seed)
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="sandpool-bench-") as directory:
        async with installation(Path(directory), clock, show, storage=storage, flags=flags) as there:

            async def measured(scenario: Scenario) -> Report:
                found = await there.working(measure(there.place, scenario, clock, rng, show))
                return replace(found, place=f"{storage} {number}")

            burst = await measured(Scenario("burst", Bursts(claims.burst), claims.pool, timeout=_TIMEOUT))
            stream = Stream(claims.rate, claims.seconds, claims.seconds)
            sustained = await measured(Scenario("sustained", stream, claims.pool, timeout=_TIMEOUT))
            figures |= {**round_figures("burst", burst), **round_figures("sustained", sustained)}
            figures |= _flatness(sustained)
            rated = []
            for rate in claims.rates:
                rated.append(await measured(_with_deletions(claims, rate)))
                if not keeps_up(rated[-1]):
                    break
            if claims.rates:
                figures[HIGHEST_RATE] = highest_rate(dict(zip(claims.rates, rated, strict=False)))
            if claims.sandboxes:
                figures[RESTARTED] = await _restarted(there, claims.sandboxes, show)
    reports = (burst, sustained, *rated)
    wrong = [f"{storage} {number}: {text}" for report in reports for text in violations(report)]
    return Round(storage, figures, reports, tuple(wrong))


async def _restarted(there: Installation, sandboxes: int, show: Show) -> float:
    return await first_claim(there, there.clock, show, sandboxes=sandboxes)


def _with_deletions(claims: Claims, rate: float) -> Scenario:
    stream = Stream(rate, claims.seconds)
    return Scenario(f"rate-{rate:g}", stream, claims.pool, timeout=_TIMEOUT, lifetime=LIFETIME)


def keeps_up(report: Report) -> bool:
    """Whether every claim of a rate was served, and 99 of 100 in time."""
    outcome = report.outcome
    served = not outcome.failed and outcome.given_up is None and len(outcome.latencies) == report.count
    return served and report.latency(99) <= SUSTAINED_P99


def highest_rate(reports: dict[float, Report]) -> float:
    """The highest rate that was kept up; 0 if none was."""
    return max((rate for rate, report in reports.items() if keeps_up(report)), default=0.0)


def round_figures(name: str, report: Report) -> dict[str, float]:
    served = len(report.outcome.latencies)
    cpu = {who: report.per_claim(used) * 1e3 for who, used in report.used.cpu.items()}
    until_ready = report.per_claim(report.cpu_until_ready["kube-apiserver"]) * 1e3
    return {
        f"{name}: p50": report.latency(50),
        f"{name}: p99": report.latency(99),
        f"{name}: unserved": float(report.count - served),
        f"{name}: cold": float(report.cold),
        f"{name}: conflicts": float(report.request_counts.conflicts[CONTROLLERS]),
        f"{name}: writes of the controllers per claim": report.per_claim(report.request_counts.writes(CONTROLLERS)),
        f"{name}: CPU of kube-apiserver until Ready": until_ready,
        f"{name}: CPU of kube-apiserver": cpu["kube-apiserver"],
        f"{name}: CPU of etcd": cpu["etcd"],
        f"{name}: CPU of Sandpool": cpu[CONTROLLER],
    }


def _flatness(report: Report) -> dict[str, float]:
    first, last = thirds(report.outcome)
    waits = [[claim.latency for claim in part if claim.latency is not None] for part in (first, last)]
    ratio = percentile(waits[1], 50) / percentile(waits[0], 50) if all(waits) else float("inf")
    return {"sustained: p50 of the last third to that of the first": ratio}


def comparison(rounds: Sequence[Round]) -> list[Figure]:
    """One figure for each name: the worst round of the storage ``aggregated``, with those of all as details."""
    found = []
    for name in _names(rounds):
        target, judged = TARGETS.get(name), _values(rounds, "aggregated", name)
        worst = (min if target is not None and target.at_least else max)(judged, default=float("nan"))
        reached = all(map(target.reached, judged)) if target is not None and judged else None
        details: dict[str, str] = {storage: _listed(_values(rounds, storage, name)) for storage in _storages(rounds)}
        found.append(Figure(name, worst, "", target.shown if target is not None else "", reached, details))
    return found


def comparison_table(rounds: Sequence[Round]) -> str:
    """One column for each storage, with the value of each round, and the target of ``aggregated`` with the verdict."""
    rows = [("", *_storages(rounds), "target", "")]
    rows += [(figure.name, *figure.details.values(), figure.target, figure.verdict) for figure in comparison(rounds)]
    return grid(rows)


def _storages(rounds: Sequence[Round]) -> list[Storage]:
    return list(dict.fromkeys(each.storage for each in rounds))


def _names(rounds: Sequence[Round]) -> list[str]:
    return list(dict.fromkeys(name for each in rounds for name in each.figures))


def _values(rounds: Sequence[Round], storage: Storage, name: str) -> list[float]:
    return [each.figures[name] for each in rounds if each.storage == storage and name in each.figures]


def _listed(values: Sequence[float]) -> str:
    return ", ".join(map(_shown, values))


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"
