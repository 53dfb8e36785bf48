from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from sandpool.bench.scenarios import SCENARIOS, Bursts, Stream, scenario_named


def test_burst_can_arrive_at_once() -> None:
    assert Bursts(3, 2).waves(Random(1)) == [[0.0, 0.0, 0.0]] * 2


def test_burst_can_arrive_at_a_rate() -> None:
    assert Bursts(3, 1, 10).waves(Random(1)) == [pytest.approx([0.0, 0.1, 0.2])]


def test_stream_arrives_randomly_at_its_rate() -> None:
    (arrivals,) = Stream(1000, 10).waves(Random(1))
    assert len(arrivals) == pytest.approx(10_000, rel=0.05)
    assert list(arrivals) == sorted(arrivals)
    assert 0 < arrivals[0] < arrivals[-1] < 10
    gaps = [after - before for before, after in pairwise(arrivals)]
    # Of a Poisson process the gaps vary as much as they last on average.
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert deviation == pytest.approx(mean, rel=0.1)


def test_same_seed_gives_the_same_stream() -> None:
    assert Stream(50, 2).waves(Random(7)) == Stream(50, 2).waves(Random(7))


def test_published_scenarios_have_their_sizes() -> None:
    burst = scenario_named("burst-300x5")
    assert burst is SCENARIOS["bursts"]
    assert (burst.load, burst.pool) == (Bursts(300, 5, 300), 600)
    assert burst.load.claims == 1500
    assert SCENARIOS["sustained"].load == Stream(1500, 60)
    assert SCENARIOS["sustained"].load.claims == 90_000


def test_fill_has_no_waves() -> None:
    assert SCENARIOS["fill"].load.waves(Random(1)) == []
    assert SCENARIOS["fill"].load.claims == 0
