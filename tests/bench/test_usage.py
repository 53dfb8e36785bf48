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


def test_metrics_tell_reconciles_processor_time_and_memory() -> None:
    expected = Usage({"sandboxclaim": 9, "sandbox": 5}, {"mine": 1.5}, {}, {"mine": 120_000_000})
    assert usage_in(METRICS, "mine") == expected


def test_what_a_process_does_not_tell_is_not_there() -> None:
    assert usage_in("# TYPE other gauge\nother 1\n", "mine") == Usage()


def test_what_was_used_meanwhile() -> None:
    before = Usage({"sandbox": 5}, {"a": 1.0}, {"a": 0.5}, {"a": 100})
    after = Usage({"sandbox": 8, "claim": 2}, {"a": 1.5}, {"a": 0.5}, {"a": 90})
    assert after.since(before) == Usage({"sandbox": 3, "claim": 2}, {"a": 0.5}, {"a": 0.0}, {"a": 90})


def test_a_process_that_began_anew_has_used_what_it_says() -> None:
    assert Usage({"sandbox": 2}, {"a": 0.25}).since(Usage({"sandbox": 50}, {"a": 9.0})) == Usage(
        {"sandbox": 2}, {"a": 0.25}
    )


def test_two_processes_share_the_reconciles() -> None:
    both = Usage({"sandbox": 1}, {"a": 1.0}) | Usage({"sandbox": 2, "claim": 1}, {"b": 2.0}, {}, {"b": 3})
    assert both == Usage({"claim": 1, "sandbox": 3}, {"a": 1.0, "b": 2.0}, {}, {"b": 3})
