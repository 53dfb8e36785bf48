"""Both storages under the same small load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from benchmarks.installation import CONTROLLER, writer
from benchmarks.kubernetes import add_comparison, command
from benchmarks.storages import (
    HIGHEST_RATE,
    RESTARTED,
    Round,
    comparison,
    comparison_table,
    highest_rate,
    keeps_up,
    round_figures,
)
from benchmarks.targets import violations
from sandpool.bench.accounting import CLIENT, CONTROLLERS, RequestCounts
from sandpool.bench.claims import Report
from sandpool.bench.html_report import page
from sandpool.bench.load import Claim, Outcome
from sandpool.bench.report import provenance
from sandpool.bench.scenarios import Bursts, Scenario
from sandpool.bench.usage import Usage
from sandpool.server.aggregated.process import CONTROLLERS as IN_PROCESS
from tests.support.aggregated_backend import ACCOUNT as AGGREGATED_ACCOUNT
from tests.support.assets import Assets
from tests.support.both_logs import BothLogs

SMALL = (
    *("--burst-size=4", "--warmpool-size=6", "--qps=4", "--seconds=3", "--storage=both", "--rounds=1"),
    *("--rates=4", "--sandboxes=16"),
)


def report(name: str, latency: float = 0.03, counts: RequestCounts | None = None) -> Report:
    claims = [Claim(f"c{n}", float(n), float(n), n + latency, f"{name}-{n}") for n in range(10)]
    used = Usage({}, {CONTROLLER: 0.02, "kube-apiserver": 0.04, "etcd": 0.01})
    return Report(
        Scenario(name, Bursts(10), 20),
        "aggregated 1",
        Outcome(claims),
        10,
        0,
        counts or RequestCounts(),
        used,
        1.0,
        cpu_until_ready={"kube-apiserver": 0.01},
    )


def logged(directory: Path, code: int) -> RequestCounts:
    """The requests of a cluster in which the controllers write to an object of their own process."""
    line = {"time": "2026-01-01T00:00:00.000000Z", "latencyMs": 1.5, "verb": "patch", "resource": "sandboxclaims"}
    line |= {"namespace": "bench-burst", "name": "c1", "code": code}
    own, kubernetes = directory / f"own-{code}.log", directory / f"kubernetes-{code}.log"
    # The request of a client has passed kube-apiserver, which logs it, too.
    lines = [{**line, "user": IN_PROCESS}, {**line, "user": CLIENT, "code": 409}]
    own.write_text("".join(json.dumps(each) + "\n" for each in lines))
    about = {"resource": "pods", "namespace": "bench-burst", "name": "c1"}
    asked = {"user": {"username": AGGREGATED_ACCOUNT}, "verb": "create", "objectRef": about}
    asked |= {"responseStatus": {"code": 201}, "stageTimestamp": "2026-01-01T00:00:01.000000Z"}
    kubernetes.write_text(json.dumps(asked) + "\n")
    return RequestCounts.of(BothLogs(kubernetes, own, IN_PROCESS, AGGREGATED_ACCOUNT).requests(), writer)


def test_table_has_a_column_for_each_storage_and_a_value_for_each_round() -> None:
    rounds = [
        Round("crd", {"p50": 2000.0, "burst: p50": 900.0}),
        Round("aggregated", {"p50": 0.25, "burst: p50": 300.0}),
        Round("crd", {"p50": 12.34}),
    ]
    assert comparison_table(rounds).splitlines() == [
        "|            | crd         | aggregated | target |         |",
        "| ---------- | ----------- | ---------- | ------ | ------- |",
        "| p50        | 2,000, 12.3 | 0.2        |        |         |",
        "| burst: p50 | 900         | 300        | <= 300 | reached |",
    ]


def test_each_round_has_to_reach_the_target() -> None:
    rounds = [Round("aggregated", {"burst: p99": p99, HIGHEST_RATE: rate}) for p99, rate in ((400, 60), (501, 30))]
    p99, rate = comparison(rounds)
    assert (p99.value, p99.verdict) == (501, "MISSED")
    assert (rate.value, rate.target, rate.verdict) == (30, ">= 45", "MISSED")
    assert [each.verdict for each in comparison(rounds[:1])] == ["reached", "reached"]


def test_conflict_on_an_own_kind_and_a_missed_target_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = logged(tmp_path, 200), logged(tmp_path, 409)
    assert good.writes(CONTROLLERS) == bad.writes(CONTROLLERS) == 2, "one on either side"
    document: dict[str, Any] = {"runs": [], "figures": []}
    for counts, latency, verdict in ((good, 0.03, "reached"), (bad, 0.9, "MISSED")):
        made = report("burst", latency, counts)
        rounds = [Round("aggregated", round_figures("burst", made), (made,), tuple(violations(made)))]
        wrong = add_comparison(rounds, document)
        shown = capsys.readouterr().out
        for name in ("p50", "p99", "conflicts"):
            (row,) = (line for line in shown.splitlines() if f"| burst: {name} " in line)
            assert verdict in row
        assert wrong == ([] if verdict == "reached" else ["burst: 1 conflicts of the controllers"])
    stored = {figure["name"]: figure["verdict"] for figure in document["figures"]}
    assert stored["burst: conflicts"] == "MISSED"
    assert stored["burst: CPU of kube-apiserver until Ready"] == "reached"
    assert "burst: conflicts" in page({**document, **provenance(), "command": command(["--storage=both"])})


def test_rate_is_kept_up_if_every_claim_is_served_in_time() -> None:
    slow, refused, overrun = report("slow", 0.51), report("refused"), report("overrun")
    refused.outcome.failed.append("c1: no")
    overrun.outcome.given_up = 3.0
    assert highest_rate({15.0: report("good"), 30.0: report("better", 0.49), 45.0: slow}) == 30
    assert not any(map(keeps_up, (slow, refused, overrun)))
    assert highest_rate({15.0: slow}) == 0


def test_stored_command_can_be_run_again() -> None:
    module = command(["--seed", "2"]).split()[2]
    assert command(["--seed", "2"]) == f"python -m {module} --seed 2"
    assert find_spec(module) is not None


@pytest.mark.kubernetes
def test_benchmark_measures_both_storages(kubernetes_assets: Assets, tmp_path: Path) -> None:
    stored, drawn = tmp_path / "run.json", tmp_path / "run.html"
    process = subprocess.run(
        [sys.executable, "-m", "benchmarks.kubernetes", *SMALL, "--json", str(stored), "--html", str(drawn)],
        env={**os.environ, "KUBEBUILDER_ASSETS": str(kubernetes_assets.directory), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    found = json.loads(stored.read_text())
    assert [each["storage"] for each in found["rounds"]] == ["crd", "aggregated"]
    for each in found["rounds"]:
        figures = each["figures"]
        for name in ("burst", "sustained"):
            assert figures[f"{name}: unserved"] == figures[f"{name}: conflicts"] == 0
            assert figures[f"{name}: p50"] > 0
            assert figures[f"{name}: CPU of Sandpool"] > 0
            assert figures[f"{name}: CPU of kube-apiserver until Ready"] > 0
            # Those to its own store, too, which kube-apiserver does not see.
            assert figures[f"{name}: writes of the controllers per claim"] > 5
        assert figures["burst: cold"] == 0
        assert figures[RESTARTED] > 0
        assert HIGHEST_RATE in figures
    assert {run["home"] for run in found["runs"]} == {"crd 1", "aggregated 1"}
    assert {run["scenario"] for run in found["runs"]} == {"burst", "sustained", "rate-4"}
    assert "aggregated 1" in drawn.read_text()
    assert "| burst: CPU of kube-apiserver" in process.stdout
    assert not list(tmp_path.glob("sandpool-*")), "nothing is left behind"
