from __future__ import annotations

from benchmarks.profiles import Round, figures


def test_figures_are_per_patch_and_profile() -> None:
    rounds = [
        Round("full", 2.0, [0.1, 0.2], 0.04, 0.5, 3000),
        Round("lean", 1.0, [0.05, 0.05], 0.02, 0.25, 2000),
        Round("full", 2.0, [0.1, 0.2], 0.06, 0.5, 3000),
        Round("lean", 1.0, [0.05, 0.05], 0.02, 0.25, 2000),
    ]
    full, lean = figures(rounds)
    assert (full.name, round(full.value, 6), full.details["patches/s"]) == (
        "full: processor time of kube-apiserver per patch",
        25.0,
        "1",
    )
    assert (round(lean.value, 6), lean.details["patches/s"], lean.details["bytes"]) == (10.0, "2", 2000)
    assert (lean.details["p50 ms"], full.details["p99 ms"], full.details["starved s"]) == ("50", "200", "1.0")
