"""What is shown of a measured load: a table of latencies, one of costs, and all of it as JSON."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from typing import Any

from sandpool.bench.accounting import CONTROLLERS, NODES, WRITERS
from sandpool.bench.claims import PERCENTILES, Report
from sandpool.bench.figures import grid


def tables(reports: Sequence[Report]) -> str:
    """Everything, as Markdown that can be read as text."""
    return "\n\n".join([latencies(reports), costs(reports), *(requests(report) for report in reports)])


def latencies(reports: Sequence[Report]) -> str:
    """``starved`` is how long the processes were ready to run and had no processor, while claims were being made."""
    head = ["scenario", "home", "claims", "p50 ms", "p90 ms", "p99 ms", "max ms", "target", "", "claims/s", "warm/cold"]
    head.append("starved")
    return grid([head, *(_latency_row(report) for report in reports)])


def _latency_row(report: Report) -> list[str]:
    targets = report.scenario.targets
    return [
        report.scenario.name,
        report.place,
        _served(report),
        *(f"{report.latency(percent):,.1f}" for percent in PERCENTILES),
        ", ".join(f"p{percent:g} <= {limit:g} ms" for percent, limit in targets),
        verdict(report),
        f"{report.outcome.throughput:,.0f}",
        f"{report.warm:,}/{report.cold:,}",
        " + ".join(f"{seconds:.1f} s" for seconds in report.starved.values()),
    ]


def _served(report: Report) -> str:
    served, given_up = len(report.outcome.latencies), report.outcome.given_up
    text = f"{served:,}" if served == report.count else f"{served:,} of {report.count:,}"
    return text if given_up is None else f"{text}; overrun after {given_up:.1f} s"


def verdict(report: Report) -> str:
    """Whether the targets were reached; empty if there are none. A claim that was never served or made misses them."""
    if not report.scenario.targets:
        return ""
    served = len(report.outcome.latencies) == report.count and report.outcome.given_up is None
    reached = served and all(report.latency(percent) <= limit for percent, limit in report.scenario.targets)
    return "reached" if reached else "MISSED"


def costs(reports: Sequence[Report]) -> str:
    """Per claim, from the first create call until all has come to rest; replacements and nodes included."""
    head = ["scenario", "home", *(f"writes of {who}" for who in WRITERS), "conflicts", "404", "reconciles: claim"]
    head += ["sandbox", "pool", "CPU ms/claim", "pool full after"]
    return grid([head, *(_cost_row(report) for report in reports)])


def _cost_row(report: Report) -> list[str]:
    ledger = report.ledger
    reconciles = [report.reconciles.get(name, 0) for name in ("sandboxclaim", "sandbox", "sandboxwarmpool")]
    cpu = " + ".join(f"{report.per_claim(seconds) * 1e3:.2f} ({who})" for who, seconds in report.cpu.items())
    return [
        report.scenario.name,
        report.place,
        *(f"{report.per_claim(ledger.writes(who)):.2f}" for who in WRITERS),
        str(ledger.conflicts[CONTROLLERS]),
        str(ledger.missing[CONTROLLERS] + ledger.missing[NODES]),
        *(f"{report.per_claim(count):.2f}" for count in reconciles),
        cpu,
        f"{report.refilled:.1f} s",
    ]


def requests(report: Report) -> str:
    """Requests per claim of one report, by who made them."""
    counts = sorted(report.ledger.requests.items(), key=lambda item: (WRITERS.index(item[0][0]), -item[1], item[0][1]))
    rows = [[who, what, f"{count:,}", f"{report.per_claim(count):.3f}"] for (who, what), count in counts]
    return grid([["writer", f"{report.scenario.name}, {report.place}", "requests", "per claim"], *rows])


def document(reports: Sequence[Report], command: str) -> dict[str, Any]:
    """For programs that draw plots or compare runs."""
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}
    return {"command": command, "machine": machine, "runs": [_run(report) for report in reports]}


def _run(report: Report) -> dict[str, Any]:
    ledger = report.ledger
    first = min((claim.due for claim in report.outcome.claims), default=0.0)
    return {
        "scenario": report.scenario.name,
        "home": report.place,
        "pool": report.scenario.pool,
        "claims": report.count,
        "served": len(report.outcome.latencies),
        "failed": report.outcome.failed,
        "given_up_after_seconds": report.outcome.given_up,
        "latency_ms": {f"p{percent}": report.latency(percent) for percent in PERCENTILES},
        "verdict": verdict(report),
        "seconds": report.outcome.seconds,
        "claims_per_second": report.outcome.throughput,
        "warm": report.warm,
        "cold": report.cold,
        "conflicts": dict(ledger.conflicts),
        "missing": dict(ledger.missing),
        "reconciles": report.reconciles,
        "cpu_seconds": report.cpu,
        "starved_seconds": report.starved,
        "refilled_after_seconds": report.refilled,
        "requests": [{"writer": who, "what": what, "count": n} for (who, what), n in sorted(ledger.requests.items())],
        # When each claim was made and when it was ready, in seconds after the first.
        "samples": [
            [round(claim.due - first, 6), None if claim.ready is None else round(claim.ready - first, 6)]
            for claim in report.outcome.claims
        ],
    }
