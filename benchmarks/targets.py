"""Targets for a run behind a real kube-apiserver, and violations that must not happen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.installation import CONTROLLER
from benchmarks.restart import Restart
from sandpool.bench.accounting import CONTROLLERS, WRITERS
from sandpool.bench.claims import Report
from sandpool.bench.figures import Figure, percentile
from sandpool.bench.load import Claim, Outcome

#: The largest ratio of the median latencies of the last and the first third that still counts as flat.
FLAT: Final = 1.5


@dataclass(frozen=True, slots=True)
class Measured:
    """One whole run. ``census`` is the number of sandboxes when ``fill`` had finished."""

    burst: Report
    fill: Report
    census: int
    sustained: Report
    restart: Restart


def figures(measured: Measured) -> list[Figure]:
    return [
        *_burst(measured.burst),
        *_sustained(measured.sustained),
        _writes(measured.burst),
        _processor(measured),
        _memory(measured),
        _restart(measured.restart),
    ]


def failures(measured: Measured) -> list[str]:
    """Return the violations: lost claims, sandboxes assigned twice, cold claims although the pool had enough members,
    conflicts."""
    found = []
    for report in (measured.burst, measured.sustained):
        found += violations(report)
    found += [f"restart: {text}" for text in _wrong(measured.restart.outcome)]
    for name, outcome, warm in (
        ("burst", measured.burst.outcome, measured.burst.warm),
        ("restart", measured.restart.outcome, measured.restart.warm),
    ):
        served = len(outcome.latencies)
        if warm != served:
            found.append(f"{name}: {served - warm:,} of {served:,} claims were not served from the pool")
    return found


def violations(report: Report) -> list[str]:
    """What must not happen under any load: lost claims, sandboxes that were given twice, conflicts."""
    found = _wrong(report.outcome)
    if conflicts := report.request_counts.conflicts[CONTROLLERS]:
        found.append(f"{conflicts:,} conflicts of the controllers")
    return [f"{report.scenario.name}: {text}" for text in found]


def _wrong(outcome: Outcome) -> list[str]:
    found = [f"claim refused: {text}" for text in outcome.failed[:3]]
    lost = len(outcome.claims) - len(outcome.latencies) - len(outcome.failed)
    if lost:
        found.append(f"{lost:,} claims were never served")
    given = Counter(claim.sandbox for claim in outcome.claims if claim.sandbox)
    found += [f"sandbox {name} was given to {times} claims" for name, times in given.items() if times > 1]
    return found


def _burst(report: Report) -> list[Figure]:
    name = f"{report.count:,} claims at once, pool of {report.scenario.pool:,}"
    details = {
        "p50": _seconds(report.latency(50)),
        "p90": _seconds(report.latency(90)),
        "claims/s": f"{report.outcome.throughput:.0f}",
        **_starved(report),
    }
    p99 = report.latency(99) / 1e3
    conflicts = report.request_counts.conflicts
    by_writer = {who: conflicts[who] for who in WRITERS if who != CONTROLLERS and conflicts[who]}
    return [
        Figure(f"{name}: p99", p99, "s", "<= 2.5 s", _all_served(report) and p99 <= 2.5, details),
        Figure("the same: cold claims", report.cold, "", "0", report.cold == 0, {"warm": f"{report.warm:,}"}),
        Figure(
            "the same: conflicts of the controllers",
            conflicts[CONTROLLERS],
            "",
            "0",
            conflicts[CONTROLLERS] == 0,
            by_writer,
        ),
    ]


def _sustained(report: Report) -> list[Figure]:
    name = f"{report.count / max(_span(report), 1):.0f} claims/s for {_span(report):.0f} s"
    first, last = thirds(report.outcome)
    served, p50, p99 = _all_served(report), report.latency(50), report.latency(99)
    flatness = _p(last, 50) / _p(first, 50) if first and last else float("inf")
    parts = {
        "first third p50/p99": f"{_p(first, 50):,.0f}/{_p(first, 99):,.0f} ms",
        "last third": f"{_p(last, 50):,.0f}/{_p(last, 99):,.0f} ms",
    }
    state = {
        "warm/cold": f"{report.warm:,}/{report.cold:,}",
        "lowest level of the pool": min((level for _, level in report.levels), default=0),
        "pool full after": f"{report.refilled:.0f} s",
        **({} if report.outcome.given_up is None else {"given up after": f"{report.outcome.given_up:.0f} s"}),
    }
    return [
        Figure(f"{name}: p50", p50, "ms", "<= 100 ms", served and p50 <= 100, state),
        Figure("the same: p99", p99, "ms", "<= 500 ms", served and p99 <= 500, _starved(report)),
        Figure("the same: p50 of the last third to that of the first", flatness, "x", "flat", flatness <= FLAT, parts),
    ]


def thirds(outcome: Outcome) -> tuple[list[Claim], list[Claim]]:
    """Return the served claims of the first and of the last third of the time."""
    begin, end = outcome.claims[0].due, outcome.claims[-1].due
    third = (end - begin) / 3
    served = [claim for claim in outcome.claims if claim.latency is not None]
    return (
        [claim for claim in served if claim.due <= begin + third],
        [claim for claim in served if claim.due >= end - third],
    )


def _writes(report: Report) -> Figure:
    """Judge the writes of the controllers by the budget. Writes of other clients are details."""
    departure = report.departure
    assert departure is not None
    parts = {"claim and replacement": report.request_counts, "deletion": departure.request_counts}
    per_claim = {who: sum(report.per_claim(counts.writes(who)) for counts in parts.values()) for who in WRITERS}
    details = {part: f"{report.per_claim(counts.writes(CONTROLLERS)):.2f}" for part, counts in parts.items()}
    others = {f"of {who}": f"{number:.2f}" for who, number in per_claim.items() if who != CONTROLLERS}
    writes = per_claim[CONTROLLERS]
    name = "writes of the controllers per claim with its replacement and deletion"
    return Figure(name, writes, "", "<= 9", writes <= 9, details | others)


def _processor(measured: Measured) -> Figure:
    """Judge the CPU time per claim of the sustained load, including replacements."""
    burst, sustained = measured.burst, measured.sustained
    each = sustained.per_claim(sustained.used.cpu[CONTROLLER]) * 1e3
    departure = burst.departure
    assert departure is not None
    details = {
        "in the burst": f"{burst.per_claim(burst.used.cpu[CONTROLLER]) * 1e3:.1f} ms",
        "deletion": f"{burst.per_claim(departure.used.cpu[CONTROLLER]) * 1e3:.1f} ms",
        **{
            f"of {who}": f"{sustained.per_claim(used) * 1e3:.1f} ms"
            for who, used in sustained.used.cpu.items()
            if who != CONTROLLER
        },
    }
    return Figure("processor time of the controller per claim, sustained", each, "ms", "<= 4 ms", each <= 4, details)


def _memory(measured: Measured) -> Figure:
    used = measured.fill.used.memory[CONTROLLER] / 1e6
    details = {
        f"at {measured.restart.sandboxes:,} after a restart": f"{measured.restart.memory / 1e6:.0f} MB",
        "after the sustained load": f"{measured.sustained.used.memory[CONTROLLER] / 1e6:.0f} MB",
    }
    name = f"resident memory of the controller at {measured.census:,} sandboxes"
    return Figure(name, used, "MB", "<= 150 MB", used <= 150, details)


def _restart(found: Restart) -> Figure:
    details = {
        "the first": f"{found.first:.2f} s",
        "the old one took to end": f"{found.ended:.2f} s",
        "CPU": f"{found.cpu:.1f} s",
        "starved": f"{found.starved:.1f} s",
    }
    name = f"restart at {found.sandboxes:,} sandboxes: {len(found.outcome.claims):,} waiting claims served after"
    return Figure(name, found.last, "s", "<= 3 s", found.last <= 3, details)


def _all_served(report: Report) -> bool:
    return len(report.outcome.latencies) == report.count and report.outcome.given_up is None


def _span(report: Report) -> float:
    claims = report.outcome.claims
    return claims[-1].due - claims[0].due if claims else 0.0


def _p(claims: Sequence[Claim], percent: float) -> float:
    waits = [claim.latency for claim in claims if claim.latency is not None]
    return percentile(waits, percent) * 1e3 if waits else float("inf")


def _seconds(milliseconds: float) -> str:
    return f"{milliseconds / 1e3:.2f} s"


def _starved(report: Report) -> dict[str, str]:
    return {f"starved: {who}": f"{seconds:.1f} s" for who, seconds in report.used.starved.items() if seconds >= 0.05}
