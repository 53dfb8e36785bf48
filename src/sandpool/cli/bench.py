"""``sandpool bench``: measure latency and cost of claims under load."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import click
import uvloop

from sandpool.bench.claims import Report, measure
from sandpool.bench.clusters import on_cluster
from sandpool.bench.comparison import compare, together
from sandpool.bench.environments import NAMES, place
from sandpool.bench.html_report import page
from sandpool.bench.report import document, tables, verdict
from sandpool.bench.scenarios import ALIASES, SCENARIOS, Bursts, Scenario, Stream, scenario_named
from sandpool.cli.cluster import change
from sandpool.cli.option_groups import SectionedCommand
from sandpool.cli.progress import Progress, steps
from sandpool.engine.clock import SystemClock
from sandpool.engine.logging import TEXT, configure_logging
from sandpool.kube.client import Client

FILE = click.Path(path_type=Path, dir_okay=False)
#: Runs forever without configuration, and most nodes have it cached.
PAUSE = "registry.k8s.io/pause:3.10@sha256:ee6521f290b2168b6e0935a181d4cff9be1ac3f505666ef0e3c98fae8199917a"
#: The built-in image of a home, and the choice of ``--home`` for it.
HOME_IMAGE = "sandpool.local/python"
LOCAL = "local"

T = TypeVar("T")


@click.group()
def bench() -> None:
    """Measure latency and cost under load."""


@dataclass(frozen=True)
class _Cluster:
    """An existing cluster under test, with the audit log and metrics that are readable there."""

    kubeconfig: Path | None
    context: str | None
    audit_log: Path | None
    metrics: Mapping[str, str]
    image: str


@bench.command(
    cls=SectionedCommand,
    sections={
        "Load": ("burst_size", "qps", "total_bursts", "warmpool_size", "seconds", "lifetime", "seed"),
        "Cluster": ("kubeconfig", "context", "audit_log", "metrics_url", "image"),
    },
)
@click.argument("scenario", nargs=-1, type=click.Choice([*SCENARIOS, *ALIASES]))
@click.option(
    "--home",
    "homes",
    type=click.Choice([*NAMES, "embedded", LOCAL]),
    multiple=True,
    help="Embedded API to start for the run; local: the running home, with its real sandboxes.",
)
@click.option("--kubeconfig", type=FILE, help="Existing cluster to load instead.")
@click.option("--context", help="Context of the kubeconfig. [default: the current one]")
@click.option(
    "--audit-log", type=click.Path(path_type=Path, dir_okay=False, exists=True), help="Audit log of that cluster."
)
@click.option("--metrics-url", multiple=True, metavar="[NAME=]URL", help="Metrics page of that cluster's controller.")
@click.option("--image", help=f"Image of the sandboxes there. [default: {PAUSE}; at home {HOME_IMAGE}]")
@click.option("--burst-size", type=click.IntRange(min=1), help="Claims per burst.")
@click.option("--qps", type=click.FloatRange(min=0), help="Claims created per second.")
@click.option(
    "--total-bursts", type=click.IntRange(min=1), help="Number of bursts. Each starts when the previous one is served."
)
@click.option("--warmpool-size", type=click.IntRange(0, 2**31 - 1), help="Replicas of the pool.")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="Duration of a sustained load.")
@click.option("--lifetime", type=click.FloatRange(min=0), help="Delete each claim so many seconds after it was ready.")
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the arrival times.")
@click.option("--json", "json_path", type=FILE, help="Write all results to this file.")
@click.option("--html", "html_path", type=FILE, help="Write a self-contained HTML report to this file.")
def claims(
    scenario: tuple[str, ...],
    homes: tuple[str, ...],
    kubeconfig: Path | None,
    context: str | None,
    audit_log: Path | None,
    metrics_url: tuple[str, ...],
    image: str | None,
    burst_size: int | None,
    qps: float | None,
    total_bursts: int | None,
    warmpool_size: int | None,
    seconds: float | None,
    lifetime: float | None,
    seed: int,
    json_path: Path | None,
    html_path: Path | None,
) -> None:
    """Measure how long claims take and what they cost.

    Without --kubeconfig or --context, each SCENARIO runs against an embedded API with simulated nodes and data on disk:
    in this process (inprocess, also called embedded) and over HTTPS (http). Without a SCENARIO, the first four run.
    In a cluster, each scenario runs in a new namespace, which is deleted at the end. A burst with --qps 0 creates all
    claims at once. The other options override values of the scenarios.
    """
    configure_logging(TEXT)
    there = kubeconfig is not None or context is not None or homes == (LOCAL,)
    if LOCAL in homes and homes != (LOCAL,):
        raise click.UsageError("--home local measures the running home: drop the other --home")
    if homes and (kubeconfig is not None or context is not None):
        raise click.UsageError("--home starts an embedded API and --kubeconfig names a cluster: drop --home")
    if not there and (audit_log is not None or metrics_url):
        raise click.UsageError("--audit-log and --metrics-url need a cluster: add --kubeconfig")
    if there and not scenario:
        raise click.UsageError("name the scenario to run on the cluster: " + ", ".join(SCENARIOS))
    chosen = [
        _changed(scenario_named(name), burst_size, qps, total_bursts, warmpool_size, seconds, lifetime)
        for name in scenario or DEFAULT
    ]
    if there:
        default = HOME_IMAGE if homes else PAUSE
        cluster = _Cluster(kubeconfig, context, audit_log, _named(metrics_url), image or default)
        runs = [partial(_run_there, each, cluster, seed) for each in chosen]
    else:
        places = dict.fromkeys(ALIAS_HOMES.get(home, home) for home in homes or NAMES)
        runs = [partial(_run, each, home, seed) for home in places for each in chosen]
    reports: list[Report] = []
    with steps(in_terminal_only=True) as progress:
        for run in runs:
            progress.bar(len(reports), len(runs), f"{len(reports)} of {len(runs)} scenarios measured")
            reports.append(run(progress))
    click.echo(tables(reports))
    found = document(reports, shlex.join(["sandpool", *sys.argv[1:]]))
    if json_path is not None:
        _store(json_path, json.dumps(found, indent=1) + "\n")
    if html_path is not None:
        _store(html_path, page(found))
    if any(verdict(report) == "MISSED" for report in reports):
        click.echo("some targets were missed", err=True)


#: Scenarios of a run that names none, and an alias of a backend.
DEFAULT = ("single", "burst", "bursts", "sustained")
ALIAS_HOMES = {"embedded": "inprocess"}


@bench.command("compare")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--html", "html_path", type=FILE, help="Write an HTML report with all runs.")
def compare_runs(files: tuple[Path, ...], html_path: Path | None) -> None:
    """Compare results that --json wrote. Ratios refer to the first file."""
    documents = [(path.stem, _stored(path)) for path in files]
    click.echo(compare(documents))
    if html_path is not None:
        _store(html_path, page(together(documents)))


def _stored(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if all("samples" in run and "levels" in run for run in document["runs"]):
            return dict(document)
    except (ValueError, TypeError, KeyError):
        pass
    raise click.ClickException(f"{path} was not stored by: sandpool bench claims --json")


def _store(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    click.echo(f"stored as {path}", err=True)


def _named(addresses: tuple[str, ...]) -> dict[str, str]:
    """Parse ``[NAME=]URL`` values. A URL may contain ``=`` itself."""
    found: dict[str, str] = {}
    for text in addresses:
        name, equals, address = text.partition("=")
        named = bool(equals) and "/" not in name
        found[name if named else "controller"] = address if named else text
    if len(found) < len(addresses):
        raise click.UsageError("two --metrics-url of the same name: give each one, as in --metrics-url apiserver=URL")
    return found


def _changed(
    scenario: Scenario,
    burst_size: int | None,
    qps: float | None,
    total_bursts: int | None,
    warmpool_size: int | None,
    seconds: float | None,
    lifetime: float | None,
) -> Scenario:
    load = scenario.load
    if isinstance(load, Stream):
        load = Stream(qps or load.rate, load.seconds if seconds is None else seconds)
    elif load.size:
        load = Bursts(
            load.size if burst_size is None else burst_size,
            load.count if total_bursts is None else total_bursts,
            load.qps if qps is None else qps,
        )
    rollout = scenario.rollout_after
    if rollout is not None and seconds is not None:
        rollout = seconds / 3  # the first third of the load uses the old template, as in the scenario itself
    pool = scenario.pool if warmpool_size is None else warmpool_size
    lifetime = scenario.lifetime if lifetime is None else lifetime
    return replace(scenario, load=load, pool=pool, rollout_after=rollout, lifetime=lifetime)


def _lines_of(progress: Progress, scenario: Scenario, where: str) -> Callable[[str], None]:
    return lambda text: progress.show(f"{scenario.name}, {where}: {text}")


def _run(scenario: Scenario, home: str, seed: int, progress: Progress) -> Report:
    """Run one scenario against a new embedded API, in an event loop of its own."""

    async def run(directory: Path) -> Report:
        clock = SystemClock()
        async with place(home, directory, clock, Random(seed)) as found:
            return await measure(found, scenario, clock, Random(seed), _lines_of(progress, scenario, home))

    with tempfile.TemporaryDirectory(prefix="sandpool-bench-") as directory:
        return uvloop.run(run(Path(directory)))


def _run_there(scenario: Scenario, cluster: _Cluster, seed: int, progress: Progress) -> Report:
    """Run one scenario in a new namespace of a cluster.

    Targets do not apply: they are for the embedded API, and what a cluster reaches depends on its machines.
    """
    scenario = replace(scenario, targets=())
    reports: list[Report] = []
    namespace = f"sandpool-bench-{Random().randrange(16**8):08x}"
    clock, show, name = SystemClock(), _lines_of(progress, scenario, "cluster"), cluster.context or "cluster"

    async def work(client: Client) -> None:
        async with on_cluster(client, name=name, audit_log=cluster.audit_log, metrics=cluster.metrics) as found:
            for text in found.left_out:
                show(text)
            show(f"in namespace {namespace}, which is removed at the end")
            run = measure(found, scenario, clock, Random(seed), show, namespace=namespace, image=cluster.image)
            reports.append(await run)

    change(cluster.kubeconfig, cluster.context, _cancelled_by_signals(work))
    return reports[0]


def _cancelled_by_signals(work: Callable[[T], Awaitable[None]]) -> Callable[[T], Awaitable[None]]:
    """Wrap ``work`` so that a signal cancels it: its clean-up runs, then ``click.Abort`` is raised.

    A second signal cancels the clean-up too.
    """

    async def attended(argument: T) -> None:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM)
        for number in signals:
            loop.add_signal_handler(number, task.cancel)
        try:
            await work(argument)
        except asyncio.CancelledError:
            raise click.Abort from None
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    return attended
