from __future__ import annotations

from sandpool.bench.usage import Usage, usage_in

METRICS = """\
# TYPE controller_runtime_reconcile_total counter
controller_runtime_reconcile_total{controller="sandboxclaim",result="success"} 7.0
controller_runtime_reconcile_total{controller="sandboxclaim",result="error"} 2.0
controller_runtime_reconcile_total{controller="sandbox",result="success"} 5.0
# TYPE agent_sandbox_claim_controller_startup_latency_ms histogram
agent_sandbox_claim_controller_startup_latency_ms_bucket{launch_type="warm",sandbox_template="python",le="+Inf"} 3
agent_sandbox_claim_controller_startup_latency_ms_count{launch_type="warm",sandbox_template="python"} 3
agent_sandbox_claim_controller_startup_latency_ms_sum{launch_type="warm",sandbox_template="python"} 60.5
agent_sandbox_claim_controller_startup_latency_ms_bucket{launch_type="cold",sandbox_template="python",le="+Inf"} 1
agent_sandbox_claim_controller_startup_latency_ms_count{launch_type="cold",sandbox_template="python"} 1
agent_sandbox_claim_controller_startup_latency_ms_sum{launch_type="cold",sandbox_template="python"} 19.5
# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total 1.5
# TYPE process_resident_memory_bytes gauge
process_resident_memory_bytes 1.2e+08
"""


def test_metrics_are_read_as_reconciles_cpu_memory_and_startups() -> None:
    expected = Usage({"sandboxclaim": 9, "sandbox": 5}, {"mine": 1.5}, {}, {"mine": 120_000_000}, (4, 80.0))
    assert usage_in(METRICS, "mine") == expected
    assert expected.mean_startup == 20.0


def test_missing_metrics_give_an_empty_usage() -> None:
    assert usage_in("# TYPE other gauge\nother 1\n", "mine") == Usage()


def test_usage_since_is_the_difference() -> None:
    before = Usage({"sandbox": 5}, {"a": 1.0}, {"a": 0.5}, {"a": 100}, (4, 80.0))
    after = Usage({"sandbox": 8, "claim": 2}, {"a": 1.5}, {"a": 0.5}, {"a": 90}, (6, 95.0))
    assert after.since(before) == Usage({"sandbox": 3, "claim": 2}, {"a": 0.5}, {"a": 0.0}, {"a": 90}, (2, 15.0))


def test_usage_of_a_restarted_process_counts_from_zero() -> None:
    restarted = Usage({"sandbox": 2}, {"a": 0.25}, startups=(1, 7.0))
    assert restarted.since(Usage({"sandbox": 50}, {"a": 9.0}, startups=(9, 90.0))) == restarted


def test_usages_of_two_processes_are_added() -> None:
    other = Usage({"sandbox": 2, "claim": 1}, {"b": 2.0}, {}, {"b": 3}, (2, 15.0))
    both = Usage({"sandbox": 1}, {"a": 1.0}, startups=(1, 5.0)) | other
    assert both == Usage({"claim": 1, "sandbox": 3}, {"a": 1.0, "b": 2.0}, {}, {"b": 3}, (3, 20.0))


def test_mean_startup_without_a_sample_is_unknown() -> None:
    assert Usage().mean_startup is None
