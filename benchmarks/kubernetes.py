"""``make bench-kubernetes``: measures Sandpool behind a real kube-apiserver, in one run on one machine.

The scenarios run one after the other on one control plane: a warm burst whose claims are then deleted, a pool that
brings the cluster to a thousand sandboxes, a sustained load, and a restart of the controller with thousands of
sandboxes. The objects of each scenario stay for the next. A missed target is reported as missed; only violations that
must not happen on any machine make the run fail.

Then the two storages are compared: a burst, a sustained load, a search for the highest rate and a restart on a cluster
with each, alternating. ``--storage crd`` leaves that out, and ``--storage both`` the rest.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Final, get_args

import uvloop

from benchmarks.installation import installation
from benchmarks.restart import Restart, count, restart
from benchmarks.storages import Claims, Round, comparison, comparison_table, storage_rounds
from benchmarks.stored_figures import stored_figures
from benchmarks.targets import Measured, failures, figures
from sandpool.api.sandbox_spec import Profile
from sandpool.bench.claims import Report, measure
from sandpool.bench.figures import table
from sandpool.bench.html_report import page
from sandpool.bench.load import Show
from sandpool.bench.report import provenance, runs, tables
from sandpool.bench.scenarios import Bursts, Scenario, Stream
from sandpool.engine.clock import SystemClock
from sandpool.engine.logging import TEXT, configure_logging
from sandpool.install.manifests import DEFAULT_PROFILE

# Seconds after which an unserved claim counts as lost. On a busy machine the last one may wait for minutes.
_TIMEOUT: Final = 300.0


async def run(options: argparse.Namespace, directory: Path, show: Show) -> Measured:
    clock, rng, task = SystemClock(), Random(options.seed), asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    pool = options.warmpool_size

    def prefixed(name: str) -> Show:
        return lambda text: show(f"{name}: {text}")

    profile, flags = options.profile, options.controller_flag
    async with installation(directory, clock, show, profile=profile, flags=flags) as there:
        place = there.place

        async def measured(scenario: Scenario) -> Report:
            return await there.working(measure(place, scenario, clock, rng, prefixed(scenario.name)))

        burst = await measured(Scenario("burst", Bursts(options.burst_size), pool, timeout=_TIMEOUT, depart=True))
        fill = await measured(Scenario("fill", Bursts(0), max(options.census - await count(place.client), 1)))
        census = await count(place.client)
        stream = Stream(options.qps, options.seconds, options.seconds)
        sustained = await measured(Scenario("sustained", stream, pool, timeout=_TIMEOUT))
        again = await restart(
            there, clock, prefixed("restart"), sandboxes=options.sandboxes, claims=options.restart_claims
        )
        return Measured(burst, fill, census, sustained, again)


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kubernetes", description=__doc__)
    parser.add_argument("--burst-size", type=int, default=300, help="claims per burst")
    parser.add_argument("--warmpool-size", type=int, default=600, help="replicas of the pools")
    parser.add_argument("--qps", type=float, default=30.0, help="claims per second of the sustained load")
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of the sustained load")
    parser.add_argument("--census", type=int, default=1000, help="number of sandboxes at which memory is judged")
    parser.add_argument(
        "--sandboxes", type=int, default=5000, help="number of sandboxes at the restart of the controller"
    )
    parser.add_argument("--restart-claims", type=int, default=30, help="claims that wait for the restarted controller")
    parser.add_argument("--seed", type=int, default=1, help="seed of the arrival times of claims")
    # The restart among the scenarios makes claims while the controller is away, which custom resources alone allow.
    parser.add_argument("--storage", choices=("all", "crd", "both"), default="all", help="what is measured")
    parser.add_argument("--rounds", type=int, default=2, help="clusters with each storage, for their comparison")
    parser.add_argument(
        "--rates",
        type=float,
        nargs="*",
        default=[15.0, 30.0, 45.0, 60.0],
        help="claims per second, with deletions, that are tried with each storage until one is too many",
    )
    parser.add_argument("--profile", choices=get_args(Profile), default=DEFAULT_PROFILE, help="profile of the CRDs")
    parser.add_argument(
        "--controller-flag",
        action="append",
        default=[],
        metavar="FLAG",
        help="flag for sandpool controller; can be repeated",
    )
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--html", type=Path, help="write a self-contained HTML page to this file")
    return parser


def main() -> None:
    given = options().parse_args()
    configure_logging(TEXT)
    document: dict[str, Any] = {**provenance(), "command": command(sys.argv[1:]), "runs": [], "figures": []}
    wrong: list[str] = []
    try:
        if given.storage != "both":
            wrong += _scenarios(given, document)
        if given.storage != "crd":
            wrong += _compare(given, document)
    except (asyncio.CancelledError, KeyboardInterrupt):
        say("interrupted")
        sys.exit(1)
    document["failures"] = wrong
    if given.json:
        _store(given.json, json.dumps(document, indent=1) + "\n")
    if given.html:
        _store(given.html, page(document))
    for text in wrong:
        say(f"WRONG: {text}")
    sys.exit(1 if wrong else 0)


def command(arguments: Sequence[str]) -> str:
    """The command that repeats a run."""
    return shlex.join(["python", "-m", "benchmarks.kubernetes", *arguments])


def _scenarios(given: argparse.Namespace, document: dict[str, Any]) -> list[str]:
    """Run the scenarios on custom resources. Adds to the document, and returns the violations."""
    with tempfile.TemporaryDirectory(prefix="sandpool-bench-") as directory:
        measured = uvloop.run(run(given, Path(directory), say))
    found, reports = figures(measured), [measured.burst, measured.fill, measured.sustained]
    sys.stdout.write(f"{table(found)}\n\n{tables(reports)}\n")
    document["runs"] += runs(reports)
    document["figures"] += stored_figures(found)
    document["restart"] = _restart(measured.restart)
    return failures(measured)


def _compare(given: argparse.Namespace, document: dict[str, Any]) -> list[str]:
    """Compare the storages. Adds to the document, and returns the violations."""
    claims = Claims(
        given.burst_size,
        given.warmpool_size,
        given.qps,
        given.seconds,
        given.seed,
        tuple(given.rates),
        given.sandboxes,
    )
    rounds = uvloop.run(storage_rounds(claims, given.rounds, tuple(given.controller_flag), say))
    return add_comparison(rounds, document)


def add_comparison(rounds: Sequence[Round], document: dict[str, Any]) -> list[str]:
    """Print the table of the storages and add it to the document. Returns the violations."""
    sys.stdout.write(f"\n{comparison_table(rounds)}\n")
    document["runs"] += runs([report for each in rounds for report in each.reports])
    document["figures"] += stored_figures(comparison(rounds))
    document["rounds"] = [{"storage": each.storage, "figures": each.figures} for each in rounds]
    return [text for each in rounds for text in each.wrong]


def say(text: str) -> None:
    sys.stderr.write(f"bench-kubernetes: {text}\n")
    sys.stderr.flush()


def _store(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    say(f"stored as {path}")


def _restart(found: Restart) -> dict[str, Any]:
    return {
        "sandboxes": found.sandboxes,
        "claims": len(found.outcome.claims),
        "filled_after_seconds": found.filled,
        "ended_after_seconds": found.ended,
        "first_ready_after_seconds": found.first,
        "last_ready_after_seconds": found.last,
        "cpu_seconds": found.cpu,
        "starved_seconds": found.starved,
        "memory_bytes": found.memory,
    }


if __name__ == "__main__":
    main()
