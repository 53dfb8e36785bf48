"""Targets are judged by the figures, and violations fail the run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.installation import CONTROLLER
from benchmarks.restart import Restart
from benchmarks.targets import Measured, failures, figures, thirds
from sandpool.bench.accounting import CLIENT, CONTROLLERS, OTHERS, RequestCounts
from sandpool.bench.claims import Departure, Report
from sandpool.bench.figures import Figure
from sandpool.bench.load import Claim, Outcome
from sandpool.bench.scenarios import Bursts, Scenario, Stream
from sandpool.bench.usage import Usage

COUNT = 30


def outcome(latency: float = 0.05) -> Outcome:
    return Outcome([Claim(f"c{n}", float(n), float(n), n + latency, f"s{n}") for n in range(COUNT)])


def usage(cpu: float) -> Usage:
    return Usage({}, {CONTROLLER: cpu}, {CONTROLLER: 1.0}, {CONTROLLER: 120_000_000})


def report(scenario: Scenario, cpu: float = 0.09) -> Report:
    request_counts, departed = RequestCounts(), RequestCounts()
    request_counts.requests.update(
        {(CONTROLLERS, "patch sandboxes"): 8 * COUNT, (CLIENT, "create sandboxclaims"): COUNT}
    )
    departed.requests.update({(CONTROLLERS, "create events"): COUNT // 2, (OTHERS, "delete sandboxes"): COUNT})
    gone = Departure(1.0, departed, usage(0.03))
    return Report(scenario, "kubernetes", outcome(), COUNT, 0, request_counts, usage(cpu), 1.0, departure=gone)


def measured() -> Measured:
    again = Restart(5000, 60.0, 0.5, 1.5, 2.5, outcome(), COUNT, 2.0, 0.1, 300_000_000)
    burst = report(Scenario("burst", Bursts(COUNT), 60))
    return Measured(burst, report(Scenario("fill", Bursts(0), 5)), 1000, report(_sustained()), again)


def _sustained() -> Scenario:
    return Scenario("sustained", Stream(1, COUNT), 60)


def named(found: list[Figure], part: str) -> Figure:
    (figure,) = (each for each in found if part in each.name)
    return figure


def test_fast_run_reaches_all_targets() -> None:
    found = figures(measured())
    assert [each.verdict for each in found] == ["reached"] * 10
    assert failures(measured()) == []


def test_writes_of_the_controllers_include_deletions() -> None:
    writes = named(figures(measured()), "writes of the controllers")
    assert (writes.value, writes.details["deletion"]) == (8.5, "0.50")
    assert (writes.details["of client"], writes.details["of others"]) == ("1.00", "1.00")


def test_slow_claims_miss_targets_and_are_no_failure() -> None:
    slow = measured()
    for claim in slow.burst.outcome.claims[-2:]:
        claim.ready = claim.due + 3.0
    for claim in slow.sustained.outcome.claims[20:]:
        claim.ready = claim.due + 0.6
    found = figures(replace(slow, restart=replace(slow.restart, last=3.5)))
    missed = {each.name for each in found if each.verdict == "MISSED"}
    assert len(missed) == 4
    assert named(found, "restart").name in missed
    assert named(found, "p50 of the last third").value == pytest.approx(12)
    assert failures(slow) == []


def test_cpu_time_is_judged_for_the_sustained_load() -> None:
    found = figures(replace(measured(), sustained=report(_sustained(), cpu=0.3)))
    assert named(found, "processor time").value == pytest.approx(10.0)
    assert named(found, "processor time").verdict == "MISSED"


def test_overrun_run_misses_its_targets() -> None:
    overrun = measured()
    overrun.sustained.outcome.given_up = 12.0
    assert named(figures(overrun), "for 29 s: p50").verdict == "MISSED"


@pytest.mark.parametrize("name", ["burst", "sustained", "restart"])
def test_unserved_claim_is_a_failure(name: str) -> None:
    lost = measured()
    getattr(lost, name).outcome.claims[3].ready = None
    assert f"{name}: 1 claims were never served" in failures(lost)


@pytest.mark.parametrize("name", ["burst", "sustained", "restart"])
def test_sandbox_assigned_twice_is_a_failure(name: str) -> None:
    twice = measured()
    getattr(twice, name).outcome.claims[3].sandbox = "s4"
    assert failures(twice) == [f"{name}: sandbox s4 was given to 2 claims"]


def test_cold_claim_with_enough_members_is_a_failure() -> None:
    cold = measured()
    assert failures(replace(cold, burst=replace(cold.burst, warm=COUNT - 1, cold=1))) == [
        f"burst: 1 of {COUNT} claims were not served from the pool"
    ]
    assert failures(replace(cold, restart=replace(cold.restart, warm=0)))
    assert failures(replace(cold, sustained=replace(cold.sustained, warm=0, cold=COUNT))) == []


def test_conflicts_of_the_controllers_are_a_failure_and_of_others_are_not() -> None:
    found = measured()
    found.burst.request_counts.conflicts[OTHERS] = 1
    assert failures(found) == []
    found.burst.request_counts.conflicts[CONTROLLERS] = 2
    assert failures(found) == ["burst: 2 conflicts of the controllers"]


def test_thirds_are_split_by_time() -> None:
    claims = [Claim(f"c{n}", due, ready=due + 1) for n, due in enumerate((0.0, 0.1, 0.2, 4.0, 9.0))]
    first, last = thirds(Outcome([*claims, Claim("lost", 8.9)]))
    assert ([each.name for each in first], [each.name for each in last]) == (["c0", "c1", "c2"], ["c4"])
