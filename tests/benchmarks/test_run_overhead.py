from __future__ import annotations

from benchmarks import run_overhead, startup
from benchmarks.run_overhead import Sample, table


def test_table_judges_the_median_against_the_target() -> None:
    quick = [Sample(20.0, 5.0), Sample(90.0, 6.0), Sample(400.0, 7.0)]
    slow = [Sample(20.0, 5.0), Sample(100.0, 6.0), Sample(110.0, 7.0)]
    rows = table({"quick": quick, "slow": slow, "other": quick}, {"quick": 100.0, "slow": 100.0}).splitlines()[2:]
    assert rows == [
        "| quick | 20 | 90 | 400 | 6 | < 100 ms, reached |",
        "| slow | 20 | 100 | 110 | 6 | < 100 ms, MISSED |",
        "| other | 20 | 90 | 400 | 6 | |",
    ]


def test_targets_are_of_subjects_that_are_measured() -> None:
    assert run_overhead.TARGETS.keys() <= run_overhead.SUBJECTS.keys()
    assert startup.TARGETS.keys() <= startup.SUBJECTS.keys()
