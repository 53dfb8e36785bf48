"""The whole benchmark in small, on a control plane of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.assets import Assets

SMALL = (
    "--burst-size=4",
    "--warmpool-size=6",
    "--qps=4",
    "--seconds=3",
    "--census=8",
    "--sandboxes=25",
    "--storage=crd",
)


@pytest.mark.kubernetes
def test_benchmark_measures_all_figures_without_failures(kubernetes_assets: Assets, tmp_path: Path) -> None:
    stored, drawn = tmp_path / "run.json", tmp_path / "run.html"
    process = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.kubernetes", *SMALL, "--restart-claims=3"),
            *("--json", str(stored), "--html", str(drawn)),
        ],
        env={**os.environ, "KUBEBUILDER_ASSETS": str(kubernetes_assets.directory), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    found = json.loads(stored.read_text())
    burst, fill, sustained = found["runs"]
    figures = {figure["name"]: figure for figure in found["figures"]}
    writes = figures["writes of the controllers per claim with its replacement and deletion"]
    assert (burst["served"], burst["warm"], burst["conflicts"]) == (4, 4, {})
    assert writes["verdict"] == "reached", writes
    for run in (burst, sustained):
        assert 0 < run["mean_latency_ms"]["metric"] <= run["mean_latency_ms"]["client"]
    assert {"controller", "node", "etcd", "kube-apiserver", "the load"} <= burst["cpu_seconds"].keys()
    departed = {(each["writer"], each["what"]): each["count"] for each in burst["departure"]["requests"]}
    assert departed["client", "delete sandboxclaims"] == departed["others", "delete sandboxes"] == 4
    assert fill["claims"] == 2 and sustained["served"] == sustained["claims"]
    first, *others = [call["what"] for call in burst["waterfalls"]["p50"]["server"]]
    assert first == "claim created"
    assert "sandbox adopted" in others, "beside the notes on the claim, which the controller sends at the same time"
    assert found["restart"]["claims"] == 3 and found["restart"]["last_ready_after_seconds"] > 0
    assert "| resident memory of the controller at 8 sandboxes" in process.stdout
    assert "controllers: sandbox adopted" in drawn.read_text()
    assert not list(tmp_path.glob("sandpool-*")), "nothing is left behind"
