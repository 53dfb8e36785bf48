"""``sandpool bench``: put a load on the system and see what it does."""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from random import Random

import click
import uvloop

from sandpool.bench.claims import Report, measure
from sandpool.bench.places import NAMES, place
from sandpool.bench.report import document, tables, verdict
from sandpool.bench.scenarios import SCENARIOS, Bursts, Scenario, Stream
from sandpool.engine import logs
from sandpool.engine.clock import SystemClock


@click.group()
def bench() -> None:
    """Put a load on the system and see what it does."""


@bench.command()
@click.argument("scenario", nargs=-1, type=click.Choice(list(SCENARIOS)))
@click.option("--home", "homes", type=click.Choice(NAMES), multiple=True, help="Where. [default: everywhere]")
@click.option("--burst-size", type=click.IntRange(min=1), help="Claims per burst.")
@click.option("--qps", type=click.FloatRange(min=0), help="Claims made per second, in a burst or all the time.")
@click.option("--total-bursts", type=click.IntRange(min=1), help="Bursts, each when the one before has been served.")
@click.option("--warmpool-size", type=click.IntRange(min=0), help="Replicas of the pool.")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="How long claims are made all the time.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of the times at which claims are made.")
@click.option("--json", "path", type=click.Path(path_type=Path, dir_okay=False), help="Also store everything here.")
def claims(
    scenario: tuple[str, ...],
    homes: tuple[str, ...],
    burst_size: int | None,
    qps: float | None,
    total_bursts: int | None,
    warmpool_size: int | None,
    seconds: float | None,
    seed: int,
    path: Path | None,
) -> None:
    """Measure how long claims take and what they cost, with nodes that run nothing and data on disk.

    SCENARIO is one or more of single, burst-300, burst-300x5 and sustained; all of them if none is named. In a burst,
    0 claims per second means all at once. The options change what the scenarios say.
    """
    logs.configure(logs.TEXT)
    chosen = [
        _changed(SCENARIOS[name], burst_size, qps, total_bursts, warmpool_size, seconds)
        for name in scenario or SCENARIOS
    ]
    reports = [_run(each, home, seed) for home in homes or NAMES for each in chosen]
    click.echo(tables(reports))
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document(reports, "sandpool " + " ".join(sys.argv[1:])), indent=1) + "\n")
        click.echo(f"stored as {path}", err=True)
    if any(verdict(report) == "MISSED" for report in reports):
        click.echo("some targets were missed", err=True)


def _changed(
    scenario: Scenario,
    burst_size: int | None,
    qps: float | None,
    total_bursts: int | None,
    warmpool_size: int | None,
    seconds: float | None,
) -> Scenario:
    load = scenario.load
    if isinstance(load, Bursts):
        load = Bursts(
            load.size if burst_size is None else burst_size,
            load.count if total_bursts is None else total_bursts,
            load.qps if qps is None else qps,
        )
    else:
        load = Stream(qps or load.rate, load.seconds if seconds is None else seconds)
    return replace(scenario, load=load, pool=scenario.pool if warmpool_size is None else warmpool_size)


def _run(scenario: Scenario, home: str, seed: int) -> Report:
    """One measurement, in a home and an event loop of its own."""

    def tell(text: str) -> None:
        click.echo(f"{scenario.name}, {home}: {text}", err=True)

    async def run(directory: Path) -> Report:
        clock = SystemClock()
        async with place(home, directory, clock, Random(seed)) as found:
            return await measure(found, scenario, clock, Random(seed), tell)

    with tempfile.TemporaryDirectory(prefix="sandpool-bench-") as directory:
        return uvloop.run(run(Path(directory)))
