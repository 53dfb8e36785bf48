"""A simulation as a whole: it can be had again, and what it finds is told so that it can be."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sandpool.controllers.claim.reporter import StatusReporter
from sandpool.testing.simulation.simulation import Simulation, SimulationFailure

SEEDS = (1, 7, 12)
DIGESTS = f"""
from sandpool.testing.simulation.simulation import Simulation
print(*[Simulation(seed).run().digest for seed in {SEEDS}])
"""


def test_a_seed_is_the_same_world_again() -> None:
    for seed in SEEDS:
        first, second = Simulation(seed).run(), Simulation(seed).run()
        assert (first.digest, first.steps, first.commits) == (second.digest, second.steps, second.commits)


def test_a_seed_is_the_same_world_in_any_process() -> None:
    """Nothing depends on the hashes of texts, which differ from process to process."""
    digests = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", DIGESTS]
        digests.add(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert len(digests) == 1
    assert next(iter(digests)).split() == [Simulation(seed).run().digest for seed in SEEDS]


def test_a_failure_says_what_happened_and_how_to_see_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    record_sample = StatusReporter.record_sample

    def twice(self: StatusReporter, sample: object) -> None:
        record_sample(self, sample)  # type: ignore[arg-type]
        record_sample(self, sample)  # type: ignore[arg-type]

    monkeypatch.setattr(StatusReporter, "record_sample", twice)
    outcome = next(outcome for seed in range(10) if (outcome := Simulation(seed).run()).violation is not None)
    with pytest.raises(SimulationFailure) as failure:
        outcome.check()
    text = str(failure.value)
    assert f"seed {outcome.seed} breaks the law metrics count every claim once" in text
    assert "PATCH sandboxclaims/" in text
    assert f"SANDPOOL_SEED={outcome.seed} .venv/bin/pytest tests/simulation" in text
