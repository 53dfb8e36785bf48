"""Renders a measured load: a table of latencies, a table of costs, and everything as JSON."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from sandpool import __version__
from sandpool.bench.accounting import CONTROLLERS, NODES, WRITERS
from sandpool.bench.claims import PERCENTILES, Departure, Report
from sandpool.bench.figures import grid

#: Shown for an unknown value.
UNKNOWN: Final = "-"
#: The moments of a claim in their usual order; the response to the create call may come late.
STEPS: Final = ("due", "sent", "answered", "seen", "assigned", "ready")


def tables(reports: Sequence[Report]) -> str:
    """Render everything as Markdown that reads well as text."""
    used = [processes(report) for report in reports if report.used.cpu]
    counted = [requests(report) for report in reports if report.request_counts.requests]
    return "\n\n".join([latencies(reports), costs(reports), *used, *counted, *notes(reports)])


def notes(reports: Sequence[Report]) -> list[str]:
    """Return the remarks about the reports, each once."""
    lines = [f"{report.scenario.name}, {report.place}: {rolled_out(report)}" for report in reports if report.rollout]
    lines += [
        f"{report.scenario.name}, {report.place}: {text}" for report in reports for text in report.outcome.failed[:3]
    ]
    lines += [
        f"{report.scenario.name}, {report.place}: {what} by {who} was answered {code}, {count:,} times"
        for report in reports
        for (who, what, code), count in sorted(report.request_counts.refused.items())
    ]
    lines += [text for report in reports for text in report.left_out]
    return list(dict.fromkeys(lines))


def rolled_out(report: Report) -> str:
    rollout = report.rollout
    assert rollout is not None
    return (
        f"the pool was full of the new template {rollout.finished - rollout.changed:.1f} s after the change; "
        f"{rollout.stale:,} claims made after it were given an old sandbox"
    )


def latencies(reports: Sequence[Report]) -> str:
    """Latencies that the client saw. ``starved`` is how long the processes were ready to run and had no processor while
    claims were being made. The last two columns compare the client's mean with that of the controller's own metric,
    which begins when the watch brings the claim and ends when the Ready status is stored."""
    head = ["scenario", "home", "claims", "p50 ms", "p90 ms", "p99 ms", "max ms", "target", "", "claims/s", "warm/cold"]
    head += ["starved", "mean ms", "mean of the metric ms"]
    return grid([head, *(_latency_row(report) for report in reports)])


def _latency_row(report: Report) -> list[str]:
    return [
        report.scenario.name,
        report.place,
        _served(report),
        *(f"{report.latency(percent):,.1f}" for percent in PERCENTILES),
        _targets(report),
        verdict(report),
        f"{report.outcome.throughput:,.0f}",
        f"{report.warm:,}/{report.cold:,}",
        " + ".join(f"{seconds:.1f} s" for seconds in report.used.starved.values()),
        *("" if mean is None else f"{mean:,.1f}" for mean in (report.mean_latency, report.used.mean_startup)),
    ]


def _targets(report: Report) -> str:
    return ", ".join(f"p{percent:g} {limit:g} ms" for percent, limit in report.scenario.targets)


def _served(report: Report) -> str:
    served, given_up = len(report.outcome.latencies), report.outcome.given_up
    text = f"{served:,}" if served == report.count else f"{served:,} of {report.count:,}"
    return text if given_up is None else f"{text}; overrun after {given_up:.1f} s"


def verdict(report: Report) -> str:
    """Return whether the targets were reached; empty without targets. A claim that was never served misses them."""
    if not report.scenario.targets:
        return ""
    served = len(report.outcome.latencies) == report.count and report.outcome.given_up is None
    reached = served and all(report.latency(percent) <= limit for percent, limit in report.scenario.targets)
    return "reached" if reached else "MISSED"


def costs(reports: Sequence[Report]) -> str:
    """Render costs per claim (per sandbox for a fill) until all activity has ended, with replacements and nodes."""
    head = ["scenario", "home", *(f"writes of {who}" for who in WRITERS), "conflicts", "404", "reconciles: claim"]
    head += ["sandbox", "pool", "pool full after"]
    return grid([head, *(_cost_row(report) for report in reports)])


def _cost_row(report: Report) -> list[str]:
    request_counts, reconciles = report.request_counts, report.used.reconciles
    asked = bool(request_counts.requests)
    names = ("sandboxclaim", "sandbox", "sandboxwarmpool")
    return [
        report.scenario.name,
        report.place,
        *(f"{report.per_claim(request_counts.writes(who)):.2f}" if asked else UNKNOWN for who in WRITERS),
        str(request_counts.conflicts[CONTROLLERS]) if asked else UNKNOWN,
        str(request_counts.missing[CONTROLLERS] + request_counts.missing[NODES]) if asked else UNKNOWN,
        *(f"{report.per_claim(reconciles.get(name, 0)):.2f}" if reconciles else UNKNOWN for name in names),
        f"{report.refilled:.1f} s",
    ]


def processes(report: Report) -> str:
    """Render the resources of each process. ``starved`` covers the creation of claims, the rest the whole run."""
    used = report.used
    head = [f"{report.scenario.name}, {report.place}", "CPU s", "CPU ms/claim", "starved", "MB at the end"]
    rows = [
        [
            name,
            f"{seconds:.1f}",
            f"{report.per_claim(seconds) * 1e3:.2f}",
            f"{used.starved[name]:.1f} s" if name in used.starved else UNKNOWN,
            f"{used.memory[name] / 1e6:.0f}" if name in used.memory else UNKNOWN,
        ]
        for name, seconds in used.cpu.items()
    ]
    return grid([head, *rows])


def requests(report: Report) -> str:
    """Render the requests per claim by writer."""
    counts = sorted(
        report.request_counts.requests.items(), key=lambda item: (WRITERS.index(item[0][0]), -item[1], item[0][1])
    )
    rows = [[who, what, f"{count:,}", f"{report.per_claim(count):.3f}"] for (who, what), count in counts]
    return grid([["writer", f"{report.scenario.name}, {report.place}", "requests", "per claim"], *rows])


def document(reports: Sequence[Report], command: str) -> dict[str, Any]:
    """Return everything as plain data, for plots and comparisons."""
    return {"command": command, **provenance(), "runs": runs(reports)}


def runs(reports: Sequence[Report]) -> list[dict[str, Any]]:
    return [_run(report) for report in reports]


def provenance() -> dict[str, Any]:
    """Return when, with which code and on which machine a measurement is made."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": __version__,
        "commit": _commit(),
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()},
    }


def _commit() -> str:
    """Return the commit of the checkout that this code runs from, marked if it has changes; empty for a package."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        found = subprocess.run(
            [*git, "describe", "--always", "--dirty", "--exclude=*"], capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""


def _run(report: Report) -> dict[str, Any]:
    request_counts, rollout, departure = report.request_counts, report.rollout, report.departure
    first = min((claim.due for claim in report.outcome.claims), default=0.0)

    def offset(moment: float | None) -> float | None:
        return None if moment is None else round(moment - first, 6)

    return {
        "scenario": report.scenario.name,
        "home": report.place,
        "nodes": report.nodes,
        "pool": report.scenario.pool,
        "claims": report.count,
        "served": len(report.outcome.latencies),
        "failed": report.outcome.failed,
        "given_up_after_seconds": report.outcome.given_up,
        "latency_ms": {
            f"p{percent}": report.latency(percent) if report.outcome.latencies else None for percent in PERCENTILES
        },
        "mean_latency_ms": {"client": report.mean_latency, "metric": report.used.mean_startup},
        "targets": _targets(report),
        "verdict": verdict(report),
        "seconds": report.outcome.seconds,
        "claims_per_second": report.outcome.throughput,
        "warm": report.warm,
        "cold": report.cold,
        "conflicts": dict(request_counts.conflicts),
        "missing": dict(request_counts.missing),
        "refused": [
            {"writer": who, "what": what, "code": code, "count": n}
            for (who, what, code), n in sorted(request_counts.refused.items())
        ],
        "reconciles": report.used.reconciles,
        "cpu_seconds": report.used.cpu,
        "starved_seconds": report.used.starved,
        "memory_bytes": report.used.memory,
        "refilled_after_seconds": report.refilled,
        "requests": [
            {"writer": who, "what": what, "count": n} for (who, what), n in sorted(request_counts.requests.items())
        ],
        "filled_after_seconds": report.filled,
        "rollout": None
        if rollout is None
        else {
            "changed": offset(rollout.changed),
            "seconds": rollout.finished - rollout.changed,
            "stale": rollout.stale,
        },
        "departure": None if departure is None else _departure(departure),
        "left_out": list(report.left_out),
        # Moments are seconds after the first claim was due.
        "levels": [[offset(at), level] for at, level in report.levels],
        # Due time and Ready time of each claim.
        "samples": [[offset(claim.due), offset(claim.ready)] for claim in report.outcome.claims],
        "waterfalls": {
            f"p{percent}": {
                "name": claim.name,
                **{step: offset(getattr(claim, step)) for step in STEPS},
                "server": [
                    {
                        "what": call.what,
                        "writer": call.writer,
                        "begin": offset(call.begin),
                        "end": offset(call.end),
                        "code": call.code,
                    }
                    for call in report.calls.get(claim.name, ())
                ],
            }
            for percent, claim in report.examples
        },
    }


def _departure(departure: Departure) -> dict[str, Any]:
    asked = departure.request_counts.requests
    return {
        "seconds": departure.seconds,
        "requests": [{"writer": who, "what": what, "count": n} for (who, what), n in sorted(asked.items())],
        "cpu_seconds": departure.used.cpu,
    }
