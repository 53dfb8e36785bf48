"""``make bench-kubernetes``: measures Sandpool behind a real kube-apiserver, in one run on one machine.

The scenarios run one after the other on one control plane: a warm burst whose claims are then deleted, a pool that
brings the cluster to a thousand sandboxes, a sustained load, and a restart of the controller with thousands of
sandboxes. The objects of each scenario stay for the next. A missed target is reported as missed; only violations that
must not happen on any machine make the run fail.

``--storage both`` compares the two storages instead: a burst and a sustained load on a cluster with each, alternating.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import signal
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any, Final, get_args

import uvloop

from benchmarks.installation import installation
from benchmarks.restart import Restart, count, restart
from benchmarks.storages import Claims, comparison_table, storage_rounds
from benchmarks.stored_figures import stored_figures
from benchmarks.targets import Measured, failures, figures
from sandpool.api.sandbox_spec import Profile
from sandpool.bench.claims import Report, measure
from sandpool.bench.figures import table
from sandpool.bench.html_report import page
from sandpool.bench.load import Tell
from sandpool.bench.report import document, tables
from sandpool.bench.scenarios import Bursts, Scenario, Stream
from sandpool.engine.clock import SystemClock
from sandpool.engine.logging import TEXT, configure_logging
from sandpool.install.manifests import DEFAULT_PROFILE
from sandpool.install.storage import DEFAULT_STORAGE

# Seconds after which an unserved claim counts as lost. On a busy machine the last one may wait for minutes.
_TIMEOUT: Final = 300.0


async def run(options: argparse.Namespace, directory: Path, tell: Tell) -> Measured:
    clock, rng, task = SystemClock(), Random(options.seed), asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    pool = options.warmpool_size

    def telling(name: str) -> Tell:
        return lambda text: tell(f"{name}: {text}")

    profile, flags = options.profile, options.controller_flag
    async with installation(directory, clock, tell, profile=profile, flags=flags) as there:
        place = there.place

        async def measured(scenario: Scenario) -> Report:
            return await there.working(measure(place, scenario, clock, rng, telling(scenario.name)))

        burst = await measured(Scenario("burst", Bursts(options.burst_size), pool, patience=_TIMEOUT, depart=True))
        fill = await measured(Scenario("fill", Bursts(0), max(options.census - await count(place.client), 1)))
        census = await count(place.client)
        stream = Stream(options.qps, options.seconds, options.seconds)
        sustained = await measured(Scenario("sustained", stream, pool, patience=_TIMEOUT))
        again = await restart(
            there, clock, telling("restart"), sandboxes=options.sandboxes, claims=options.restart_claims
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
    # The restart of this benchmark makes claims while the controller is away, which custom resources alone allow.
    storages = (DEFAULT_STORAGE, "both")
    parser.add_argument("--storage", choices=storages, default=DEFAULT_STORAGE, help="where sandboxes are kept")
    parser.add_argument("--rounds", type=int, default=2, help="clusters with each storage, for --storage both")
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
    command = shlex.join(["python", "-m", "sandpool.bench.kubernetes", *sys.argv[1:]])
    if given.storage == "both":
        return _compare(given)
    with tempfile.TemporaryDirectory(prefix="sandpool-bench-") as directory:
        try:
            measured = uvloop.run(run(given, Path(directory), say))
        except (asyncio.CancelledError, KeyboardInterrupt):
            say("interrupted")
            sys.exit(1)
    found, wrong = figures(measured), failures(measured)
    reports = [measured.burst, measured.fill, measured.sustained]
    sys.stdout.write(f"{table(found)}\n\n{tables(reports)}\n")
    stored = {**document(reports, command), "figures": stored_figures(found), "failures": wrong}
    stored["restart"] = _restart(measured.restart)
    if given.json:
        _store(given.json, json.dumps(stored, indent=1) + "\n")
    if given.html:
        _store(given.html, page(stored))
    for text in wrong:
        say(f"WRONG: {text}")
    sys.exit(1 if wrong else 0)


def _compare(given: argparse.Namespace) -> None:
    """Compare the storages."""
    claims = Claims(given.burst_size, given.warmpool_size, given.qps, given.seconds, given.seed)
    rounds = uvloop.run(storage_rounds(claims, given.rounds, tuple(given.controller_flag), say))
    sys.stdout.write(comparison_table(rounds) + "\n")
    if given.json:
        _store(given.json, json.dumps([asdict(each) for each in rounds], indent=1) + "\n")


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
