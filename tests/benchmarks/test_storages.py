"""Both storages under the same small load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.storages import Round, comparison_table
from tests.support.assets import Assets

SMALL = ("--burst-size=4", "--warmpool-size=6", "--qps=4", "--seconds=3", "--storage=both", "--rounds=1")


def test_table_has_a_column_for_each_storage_and_a_value_for_each_round() -> None:
    rounds = [Round("crd", {"p50": 2000.0}), Round("aggregated", {"p50": 0.25}), Round("crd", {"p50": 12.34})]
    assert comparison_table(rounds).splitlines() == [
        "|     | crd         | aggregated |",
        "| --- | ----------- | ---------- |",
        "| p50 | 2,000, 12.3 | 0.2        |",
    ]


@pytest.mark.kubernetes
def test_benchmark_measures_both_storages(kubernetes_assets: Assets, tmp_path: Path) -> None:
    stored = tmp_path / "run.json"
    process = subprocess.run(
        [sys.executable, "-m", "benchmarks.kubernetes", *SMALL, "--json", str(stored)],
        env={**os.environ, "KUBEBUILDER_ASSETS": str(kubernetes_assets.directory), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    found = json.loads(stored.read_text())
    assert [each["storage"] for each in found] == ["crd", "aggregated"]
    for each in found:
        figures = each["figures"]
        for name in ("burst", "sustained"):
            assert figures[f"{name}: unserved"] == figures[f"{name}: conflicts"] == 0
            assert figures[f"{name}: p50"] > 0
            assert figures[f"{name}: CPU of Sandpool"] > 0
        assert figures["burst: cold"] == 0
    assert "| burst: CPU of kube-apiserver" in process.stdout
    assert not list(tmp_path.glob("sandpool-*")), "nothing is left behind"
