"""Compares measurements; ratios refer to the first one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from sandpool.bench.accounting import CONTROLLERS, WRITERS
from sandpool.bench.figures import grid
from sandpool.explain.audit import WRITES

Run = Mapping[str, Any]


def _per_claim(run: Run, amount: float) -> float:
    count: int = run["claims"]
    return amount / max(count, 1)


def _writes(writer: str) -> Callable[[Run], float | None]:
    def count(run: Run) -> float | None:
        asked = run["requests"]
        made = sum(each["count"] for each in asked if each["writer"] == writer and each["what"].split()[0] in WRITES)
        return _per_claim(run, made) if asked else None

    return count


def _cpu(run: Run) -> float | None:
    """Sum over all known processes, without the load where it has a process of its own."""
    used = {who: seconds for who, seconds in run["cpu_seconds"].items() if who != "the load"}
    return _per_claim(run, sum(used.values())) * 1e3 if used else None


def _conflicts(run: Run) -> float | None:
    return float(run["conflicts"].get(CONTROLLERS, 0)) if run["requests"] else None


def _reconciles(run: Run) -> float | None:
    return _per_claim(run, sum(run["reconciles"].values())) if run["reconciles"] else None


def _latency(percent: str) -> Callable[[Run], float | None]:
    return lambda run: run["latency_ms"][percent]


def _mean(source: str) -> Callable[[Run], float | None]:
    return lambda run: run.get("mean_latency_ms", {}).get(source)  # older documents have none


#: The compared figures; None where a run does not know one.
FIGURES: Final[tuple[tuple[str, Callable[[Run], float | None]], ...]] = (
    ("claims", lambda run: run["claims"]),
    ("served", lambda run: run["served"]),
    ("p50 ms", _latency("p50")),
    ("p90 ms", _latency("p90")),
    ("p99 ms", _latency("p99")),
    ("max ms", _latency("p100")),
    ("mean ms", _mean("client")),
    ("mean of the metric ms", _mean("metric")),
    ("claims/s", lambda run: run["claims_per_second"]),
    ("cold", lambda run: run["cold"]),
    ("pool full after s", lambda run: run["refilled_after_seconds"]),
    *((f"writes of {who} per claim", _writes(who)) for who in WRITERS),
    ("conflicts of controllers", _conflicts),
    ("reconciles per claim", _reconciles),
    ("CPU ms per claim", _cpu),
)


def compare(documents: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Render one table per scenario. ``documents`` are stored measurements by name; ratios refer to the first run."""
    found: dict[str, list[Run]] = {}
    for run in together(documents)["runs"]:
        found.setdefault(run["scenario"], []).append(run)
    return "\n\n".join(_table(scenario, runs) for scenario, runs in found.items())


def together(documents: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Merge documents into one, with the name of the document before the backend of each run."""
    runs = [{**run, "home": f"{name}, {run['home']}"} for name, document in documents for run in document["runs"]]
    commands = "; ".join(f"{name}: {document['command']}" for name, document in documents)
    return {"command": commands, "machine": documents[0][1]["machine"], "runs": runs}


def _table(scenario: str, runs: Sequence[Run]) -> str:
    head = [scenario]
    for number, run in enumerate(runs):
        head += [run["home"], "ratio"] if number else [run["home"]]
    rows = []
    for figure, value in FIGURES:
        values = [value(run) for run in runs]
        if any(each is not None for each in values):
            row = [figure, shown(values[0])]
            for each in values[1:]:
                row += [shown(each), ratio(each, values[0])]
            rows.append(row)
    return grid([head, *rows])


def shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


def ratio(value: float | None, first: float | None) -> str:
    """Render a ratio; empty where a value is unknown or the base is zero."""
    return "" if value is None or not first else f"x {value / first:.2f}"
