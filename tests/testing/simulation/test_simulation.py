"""Whole simulations: a seed replays the same run, and failures report how to replay them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandpool.controllers.claim.reporter import StatusReporter
from sandpool.testing.simulation.simulation import Outcome, Scenario, SimulationFailure
from tests.support.simulation.users import UserSimulation

ROOT = Path(__file__).parents[3]
SEEDS = (1, 7, 12)
DIGESTS = f"""
from sandpool.testing.simulation.simulation import Scenario
from tests.support.simulation.users import UserSimulation
worlds = [UserSimulation(seed, Scenario(aggregated=aggregated)) for seed in {SEEDS} for aggregated in (False, True)]
print(*[world.run().digest for world in worlds])
"""


def run(seed: int, *, aggregated: bool) -> Outcome:
    return UserSimulation(seed, Scenario(aggregated=aggregated)).run()


@pytest.mark.parametrize("aggregated", [False, True], ids=["single", "aggregated"])
def test_seed_replays_the_same_run(aggregated: bool) -> None:
    for seed in SEEDS:
        first, second = run(seed, aggregated=aggregated), run(seed, aggregated=aggregated)
        assert (first.digest, first.steps, first.commits) == (second.digest, second.steps, second.commits)


def test_seed_replays_the_same_run_in_any_process() -> None:
    """Nothing depends on string hashes, which differ between Python processes."""
    digests = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", DIGESTS]
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        digests.add(done.stdout)
    assert len(digests) == 1
    assert next(iter(digests)).split() == [
        run(seed, aggregated=aggregated).digest for seed in SEEDS for aggregated in (False, True)
    ]


def test_failure_reports_the_invariant_the_trace_and_the_replay_command(monkeypatch: pytest.MonkeyPatch) -> None:
    record_sample = StatusReporter.record_sample

    def twice(self: StatusReporter, sample: object) -> None:
        record_sample(self, sample)  # type: ignore[arg-type]
        record_sample(self, sample)  # type: ignore[arg-type]

    monkeypatch.setattr(StatusReporter, "record_sample", twice)
    outcome = next(outcome for seed in range(10) if (outcome := UserSimulation(seed).run()).violation is not None)
    with pytest.raises(SimulationFailure) as failure:
        outcome.check()
    text = str(failure.value)
    assert f"seed {outcome.seed} violates the invariant metrics count every claim once" in text
    assert "PATCH sandboxclaims/" in text
    assert f"SANDPOOL_SEED={outcome.seed} .venv/bin/pytest tests/simulation" in text
