from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime

import pytest

from sandpool import __version__
from sandpool.bench.accounting import CLIENT, CONTROLLERS, RequestCounts
from sandpool.bench.claims import Report
from sandpool.bench.figures import grid
from sandpool.bench.load import Claim, Outcome
from sandpool.bench.report import document, tables, verdict
from sandpool.bench.scenarios import Bursts, Scenario
from sandpool.bench.usage import Usage


def report(latencies: list[float | None], targets: tuple[tuple[float, float], ...] = ()) -> Report:
    claims = [
        Claim(f"claim-{number}", 10.0, 10.0, None if latency is None else 10.0 + latency)
        for number, latency in enumerate(latencies)
    ]
    request_counts = RequestCounts()
    request_counts.requests.update({(CONTROLLERS, "patch sandboxes"): 2 * len(claims), (CLIENT, "list pods"): 1})
    request_counts.conflicts[CONTROLLERS] = 3
    return Report(
        Scenario("mine", Bursts(len(claims)), 5, targets),
        "inprocess",
        Outcome(claims),
        len(claims),
        0,
        request_counts,
        Usage(
            {"sandboxclaim": 4, "sandbox": 2, "sandboxwarmpool": 1},
            {"everything": 0.5},
            {"everything": 0.25},
            {"everything": 50_000_000},
            startups=(4, 74.0),
        ),
        1.25,
    )


@pytest.mark.parametrize(
    ("latencies", "expected"),
    [([0.01, 0.02], "reached"), ([0.01, 0.2], "MISSED"), ([0.01, None], "MISSED"), ([None], "MISSED")],
)
def test_targets_are_reached_if_all_claims_are_served_in_time(latencies: list[float | None], expected: str) -> None:
    assert verdict(report(latencies, ((99, 100.0),))) == expected


def test_overrun_run_misses_its_targets() -> None:
    overrun = report([0.01], ((99, 100.0),))
    overrun.outcome.given_up = 2.5
    assert verdict(overrun) == "MISSED"
    assert "| 1; overrun after 2.5 s |" in tables([overrun])


def test_run_without_targets_has_no_verdict() -> None:
    assert verdict(report([1.0])) == ""


def test_tables_have_latencies_and_costs() -> None:
    text = tables([report([0.010, 0.020, 0.030, None])])
    latencies, costs, processes, requests = text.split("\n\n")
    assert "| 3 of 4 | 20.0   | 30.0   | 30.0   | 30.0   |" in latencies
    head, _, row = latencies.splitlines()
    assert head.endswith("| mean ms | mean of the metric ms |")
    assert row.endswith("| 20.0    | 18.5                  |")
    assert "| 2.00 " in costs
    assert "| 3         | 0   | 1.00              | 0.50    | 0.25 | 1.2 s" in costs
    assert "| everything      | 0.5   | 125.00       | 0.2 s   | 50            |" in processes
    assert "| controllers | patch sandboxes | 8        | 2.000     |" in requests


def test_document_has_every_claim() -> None:
    (run,) = json.loads(json.dumps(document([report([0.5, None])], "the command")))["runs"]
    assert run["samples"] == [[0.0, 0.5], [0.0, None]]
    assert run["requests"][1] == {"writer": "controllers", "what": "patch sandboxes", "count": 4}


def test_document_has_the_mean_of_the_client_and_of_the_metric() -> None:
    (run,) = document([report([0.010, 0.050, None])], "")["runs"]
    assert run["mean_latency_ms"] == {"client": pytest.approx(30.0), "metric": 18.5}
    unknown = replace(report([None]), used=Usage())
    (run,) = document([unknown], "")["runs"]
    assert run["mean_latency_ms"] == {"client": None, "metric": None}
    assert "|         |                       |" in tables([unknown])


def test_grid_is_aligned() -> None:
    assert grid([["a", "long"], ["longer", "b"]]).splitlines() == [
        "| a      | long |",
        "| ------ | ---- |",
        "| longer | b    |",
    ]


def test_document_has_date_version_and_commit() -> None:
    found = document([], "the command")
    assert found["version"] == __version__
    assert datetime.fromisoformat(found["date"]).tzinfo is not None
    assert "commit" in found
