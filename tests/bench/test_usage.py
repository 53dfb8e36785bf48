from __future__ import annotations

from sandpool.bench.usage import Usage, usage_in

METRICS = """\
# TYPE controller_runtime_reconcile_total counter
controller_runtime_reconcile_total{controller="sandboxclaim",result="success"} 7.0
controller_runtime_reconcile_total{controller="sandboxclaim",result="error"} 2.0
controller_runtime_reconcile_total{controller="sandbox",result="success"} 5.0
# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total 1.5
# TYPE process_resident_memory_bytes gauge
process_resident_memory_bytes 1.2e+08
"""


def test_metrics_are_read_as_reconciles_cpu_and_memory() -> None:
    expected = Usage({"sandboxclaim": 9, "sandbox": 5}, {"mine": 1.5}, {}, {"mine": 120_000_000})
    assert usage_in(METRICS, "mine") == expected


def test_missing_metrics_give_an_empty_usage() -> None:
    assert usage_in("# TYPE other gauge\nother 1\n", "mine") == Usage()


def test_usage_since_is_the_difference() -> None:
    before = Usage({"sandbox": 5}, {"a": 1.0}, {"a": 0.5}, {"a": 100})
    after = Usage({"sandbox": 8, "claim": 2}, {"a": 1.5}, {"a": 0.5}, {"a": 90})
    assert after.since(before) == Usage({"sandbox": 3, "claim": 2}, {"a": 0.5}, {"a": 0.0}, {"a": 90})


def test_usage_of_a_restarted_process_counts_from_zero() -> None:
    assert Usage({"sandbox": 2}, {"a": 0.25}).since(Usage({"sandbox": 50}, {"a": 9.0})) == Usage(
        {"sandbox": 2}, {"a": 0.25}
    )


def test_usages_of_two_processes_are_added() -> None:
    both = Usage({"sandbox": 1}, {"a": 1.0}) | Usage({"sandbox": 2, "claim": 1}, {"b": 2.0}, {}, {"b": 3})
    assert both == Usage({"claim": 1, "sandbox": 3}, {"a": 1.0, "b": 2.0}, {}, {"b": 3})
