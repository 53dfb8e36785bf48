from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sandpool.bench.comparison import compare, ratio, shown, together
from sandpool.cli.bench import bench


def document(scenario: str = "burst", p99: float | None = 100.0, count: int = 4, **fields: Any) -> dict[str, Any]:
    asked = [
        {"writer": "controllers", "what": "patch sandboxes", "count": count},
        {"writer": "controllers", "what": "list sandboxes", "count": 100},
    ]
    run: dict[str, Any] = {
        "scenario": scenario,
        "home": "cluster",
        "claims": 2,
        "served": 2,
        "latency_ms": {"p50": 10.0, "p90": 50.0, "p99": p99, "p100": p99},
        "claims_per_second": 20.0,
        "warm": 2,
        "cold": 0,
        "refilled_after_seconds": 1.5,
        "requests": asked,
        "conflicts": {"controllers": 3},
        "reconciles": {"sandboxclaim": 4, "sandbox": 2},
        "cpu_seconds": {"sandpool up": 0.01, "the load": 5.0},
        "memory_bytes": {},
        "rollout": None,
        "left_out": [],
        "levels": [[0.0, 3]],
        "samples": [[0.0, 0.01], [0.0, 0.1]],
        "waterfalls": {},
        **fields,
    }
    return {"command": "c", "machine": {"cores": 2, "python": "3", "system": "s"}, "runs": [run]}


def rows(text: str) -> dict[str, list[str]]:
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return {name: cells for name, *cells in table}


def test_runs_are_compared_with_ratios_to_the_first() -> None:
    found = rows(compare([("a", document()), ("b", document(p99=250.0, count=6)), ("c", document(p99=50.0))]))
    assert found["burst"] == ["a, cluster", "b, cluster", "ratio", "c, cluster", "ratio"]
    assert found["p99 ms"] == ["100", "250", "x 2.50", "50", "x 0.50"]
    assert found["writes of controllers per claim"] == ["2", "3", "x 1.50", "2", "x 1.00"]
    assert found["CPU ms per claim"][0] == "5"
    assert found["reconciles per claim"][0] == "3"
    assert found["cold"] == ["0", "0", "", "0", ""]


def test_figure_unknown_to_one_run_has_no_ratio_and_unknown_to_all_no_row() -> None:
    blind: Any = {"requests": [], "conflicts": {}, "reconciles": {}, "cpu_seconds": {}}
    found = rows(compare([("a", document(**blind)), ("b", document())]))
    assert found["conflicts of controllers"] == ["-", "3", ""]
    neither = rows(compare([("a", document(**blind)), ("b", document(**blind))]))
    assert "conflicts of controllers" not in neither and "CPU ms per claim" not in neither


def test_means_of_client_and_metric_are_compared() -> None:
    found = rows(
        compare(
            [
                ("a", document(mean_latency_ms={"client": 40.0, "metric": 30.0})),
                ("b", document(mean_latency_ms={"client": 20.0, "metric": None})),
                ("before there were means", document()),
            ]
        )
    )
    assert found["mean ms"] == ["40", "20", "x 0.50", "-", ""]
    assert found["mean of the metric ms"] == ["30", "-", "", "-", ""]


def test_each_scenario_has_its_table() -> None:
    first, second = compare([("a", document()), ("b", document("single"))]).split("\n\n")
    assert first.startswith("| burst") and second.startswith("| single")


@pytest.mark.parametrize(("value", "expected"), [(None, "-"), (3, "3"), (1234.0, "1,234"), (0.125, "0.12")])
def test_numbers_are_shortened(value: float | None, expected: str) -> None:
    assert shown(value) == expected


@pytest.mark.parametrize(
    ("value", "first", "expected"), [(2.0, 4.0, "x 0.50"), (None, 4.0, ""), (2.0, None, ""), (2.0, 0.0, "")]
)
def test_ratio_is_formatted(value: float | None, first: float | None, expected: str) -> None:
    assert ratio(value, first) == expected


def test_compare_command_reads_files_and_writes_a_page(tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        (tmp_path / f"{name}.json").write_text(json.dumps(document()))
    files = [str(tmp_path / "ours.json"), str(tmp_path / "theirs.json")]
    result = CliRunner().invoke(bench, ["compare", *files, "--html", str(tmp_path / "both.html")])
    assert result.exit_code == 0, result.output
    assert "theirs, cluster" in result.output
    assert "theirs, cluster" in (tmp_path / "both.html").read_text()
    assert len(together([("a", document()), ("b", document())])["runs"]) == 2


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"runs": [{}]}'])
def test_foreign_file_is_rejected(tmp_path: Path, content: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    result = CliRunner().invoke(bench, ["compare", str(path)])
    assert (result.exit_code, "was not stored by" in result.output) == (1, True)
