"""``sandpool controller``: what it makes of its flags, and how it complains."""

from __future__ import annotations

import json
import logging
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from sandpool.bench.child_process import Component
from sandpool.bench.server_process import ServerProcess
from sandpool.cli.controller import Options, controller
from sandpool.cli.go_flags import WITHOUT_EFFECT
from sandpool.controllers.options import ControllerOptions
from sandpool.engine.leaderelection import LeaseLost, LeaseTiming

# An address without a listener: port 1 of loopback is reserved and unused.
KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "a", "cluster": {"server": "https://127.0.0.1:1"}}],
    "users": [{"name": "a", "user": {"token": "t"}}],
    "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a", "namespace": "ours"}}],
    "current-context": "a",
}


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    """A command sets up the log of its process, which here is that of all tests."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    path = tmp_path / "config"
    path.write_text(json.dumps(KUBECONFIG))
    return path


@pytest.fixture
def understood(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Options, ControllerOptions]]]:
    """Record the options with which the command would have run."""
    calls: list[tuple[Options, ControllerOptions]] = []

    def run(work: object) -> None:
        calls.append(work.args)  # type: ignore[attr-defined]

    monkeypatch.setattr("sandpool.cli.foreground.run", run)
    yield calls


def complaint(kubeconfig: Path, *flags: str) -> str:
    result = CliRunner().invoke(controller, ["--kubeconfig", str(kubeconfig), *flags])
    assert result.exit_code in (1, 2), result.output
    return result.output


def test_flags_have_the_defaults_of_the_go_controller(
    kubeconfig: Path, understood: list[tuple[Options, ControllerOptions]]
) -> None:
    CliRunner().invoke(controller, ["--kubeconfig", str(kubeconfig)], catch_exceptions=False)
    [(options, settings)] = understood
    assert (options.metrics_address, options.health_address) == (":8080", ":8081")
    assert (options.qps, options.burst, options.tracing) == (-1, 10, False)
    assert options.terms == LeaseTiming(15, 10, 2)
    assert options.election_namespace == "ours"
    expected = ControllerOptions(instance=socket.gethostname())
    assert settings == expected, "the flags' defaults are those of the settings"


def test_flags_set_the_options(kubeconfig: Path, understood: list[tuple[Options, ControllerOptions]]) -> None:
    flags = (
        "--leader-elect=false --leader-election-namespace=theirs --kube-api-qps=50 --kube-api-burst=100 "
        "--metrics-bind-address=0 --health-probe-bind-address=127.0.0.1:0 --enable-tracing "
        "--cluster-domain=example.org --sandbox-concurrent-workers=1 --sandbox-claim-concurrent-workers=2 "
        "--sandbox-warm-pool-concurrent-workers=3 --sandbox-template-concurrent-workers=4 "
        "--sandbox-warm-pool-max-batch-size=5 --sandbox-warm-pool-replenish-delay=6s "
        "--sandbox-warm-pool-max-refill-rate=7.5 --max-claims-per-namespace=11 --max-warm-sandboxes-per-namespace=0 "
        "--sandbox-warm-pool-readiness-grace-period=8m --sandbox-warm-pool-unschedulable-recheck-interval=9m "
        "--enable-warm-pool-eviction=false --sandbox-write-behind-window=10s --disable-claim-events "
        "--disable-claim-observability-annotations --cache-label-selectors"
    )
    result = CliRunner().invoke(controller, ["--kubeconfig", str(kubeconfig), *flags.split()], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    [(options, settings)] = understood
    assert (options.terms, options.election_namespace) == (None, "theirs")
    assert (options.qps, options.burst, options.tracing) == (50, 100, True)
    assert (options.metrics_address, options.health_address) == ("0", "127.0.0.1:0")
    assert settings.sandbox.cluster_domain == "example.org"
    assert settings.sandbox.write_behind.total_seconds() == 10
    assert (settings.sandbox_workers, settings.claim.workers) == (1, 2)
    assert (settings.warm_pool_workers, settings.template_workers) == (3, 4)
    pool = settings.warm_pool
    assert (pool.max_batch_size, pool.replenish_delay, pool.max_refill_rate) == (5, 6, 7.5)
    assert (pool.readiness_grace_period, pool.unschedulable_recheck_interval) == (480, 540)
    assert (pool.enable_eviction, settings.claim_events, settings.claim.annotate_observability) == (False, False, False)
    assert (settings.max_claims_per_namespace, settings.max_warm_sandboxes_per_namespace) == (11, 0)
    assert settings.cache_label_selectors


def test_every_flag_of_the_go_controller_is_understood(
    kubeconfig: Path, understood: list[tuple[Options, ControllerOptions]]
) -> None:
    flags = [f"{name}=1" for name in WITHOUT_EFFECT]
    result = CliRunner().invoke(controller, ["--kubeconfig", str(kubeconfig), "--enable-webhook", *flags])
    assert result.exit_code == 0
    assert len(understood) == 1
    named = [json.loads(line)["message"] for line in result.stderr.splitlines()]
    assert "--extensions has no effect: templates, pools and claims are always served" in named
    assert {message.split()[0] for message in named} == set(WITHOUT_EFFECT)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--metrics-bind-address=8080"], "'8080' is not an address: it should look like :8080"),
        (["--leader-elect-lease-duration=5s"], "must be longer than --leader-elect-renew-deadline"),
        (["--leader-elect-lease-duration=15500ms"], "must be whole seconds"),
        (["--kube-api-burst=0"], "0 is not in the range x>=1"),
        (["--sandbox-concurrent-workers=0"], "0 is not in the range x>=1"),
        (["--sandbox-warm-pool-max-refill-rate=-1"], "-1.0 is not in the range"),
        (["--sandbox-warm-pool-max-refill-rate=inf"], "inf is not in the range"),
        (["--context=nonsense"], "nonsense"),
    ],
)
def test_invalid_flags_are_rejected(kubeconfig: Path, flags: list[str], said: str) -> None:
    assert said in complaint(kubeconfig, *flags)


def test_rate_limit_below_the_worker_count_causes_a_warning(
    kubeconfig: Path, understood: list[tuple[Options, ControllerOptions]]
) -> None:
    result = CliRunner().invoke(controller, ["--kubeconfig", str(kubeconfig), "--kube-api-qps=50"])
    assert [json.loads(line)["message"] for line in result.stderr.splitlines()] == [
        "169 workers share --kube-api-burst=10 and --kube-api-qps=50: the rate limit will delay most of them"
    ]


def logged(kubeconfig: Path, *flags: str) -> list[str]:
    result = CliRunner().invoke(controller, ["--kubeconfig", str(kubeconfig), *flags], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return [json.loads(line)["message"] for line in result.stderr.splitlines()]


def test_more_than_1000_workers_cause_a_warning(
    kubeconfig: Path, understood: list[tuple[Options, ControllerOptions]]
) -> None:
    assert logged(kubeconfig, "--sandbox-concurrent-workers=931") == []  # 931 + 64 + 4 + 1 = 1000
    assert logged(kubeconfig, "--sandbox-concurrent-workers=932") == [
        "1001 concurrent workers in total: more than 1000 may overload the API server"
    ]
    assert len(understood) == 2, "it starts all the same"


def test_allowed_label_domains_are_read_from_a_file(
    kubeconfig: Path, understood: list[tuple[Options, ControllerOptions]], tmp_path: Path
) -> None:
    file = tmp_path / "allowed-label-domains"
    file.write_text("Example.COM, b.io\r\n\nc.io\n")
    assert logged(kubeconfig, f"--allowed-label-domains-file={file}") == []
    file.write_text(" \n")
    assert logged(kubeconfig, f"--allowed-label-domains-file={file}") == []
    assert logged(kubeconfig, f"--allowed-label-domains-file={tmp_path / 'missing'}") == []
    assert [settings.claim.label_domains for _, settings in understood] == [
        ("example.com", "b.io", "c.io"),
        ("sandbox.users.io",),
        ("sandbox.users.io",),
    ]


def test_invalid_label_domain_is_named(
    kubeconfig: Path, understood: list[tuple[Options, ControllerOptions]], tmp_path: Path
) -> None:
    file = tmp_path / "allowed-label-domains"
    file.write_text("a.io,*.b.io")
    assert logged(kubeconfig, f"--allowed-label-domains-file={file}") == [
        f"no label can be of the domain '*.b.io' in {file}: it is not a DNS name"
    ]
    assert understood[-1][1].claim.label_domains == ("a.io", "*.b.io")


def test_unreadable_file_of_label_domains_ends_the_process(kubeconfig: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        controller, ["--kubeconfig", str(kubeconfig), f"--allowed-label-domains-file={tmp_path}"]
    )
    assert (result.exit_code, result.output.splitlines()[-1]) == (
        1,
        f"Error: cannot read --allowed-label-domains-file {tmp_path}: Is a directory",
    )


def test_missing_kubeconfig_is_reported(tmp_path: Path) -> None:
    assert re.search(r"cannot read the kubeconfig .*/missing: No such file", complaint(tmp_path / "missing"))


def test_malformed_kubeconfig_is_reported(tmp_path: Path) -> None:
    (tmp_path / "odd").write_text("[]")
    assert "is not a kubeconfig" in complaint(tmp_path / "odd")


def test_lost_lease_is_an_error(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(work: object) -> None:
        raise LeaseLost("the lease could not be renewed for 10 s")

    monkeypatch.setattr("sandpool.cli.foreground.run", run)
    assert complaint(kubeconfig) == ("Error: lost the leader lease; exiting: the lease could not be renewed for 10 s\n")


def test_address_in_use_is_reported(kubeconfig: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [sys.executable, "-m", "sandpool.cli.main", "controller", "--kubeconfig", str(kubeconfig)]
        addresses = ["--metrics-bind-address", address, "--health-probe-bind-address=0"]
        done = subprocess.run([*command, *addresses], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert f"cannot listen at {address}: Address already in use" in done.stderr


def test_unreachable_api_is_awaited(kubeconfig: Path, tmp_path: Path) -> None:
    """The command logs that it waits, and stops on a signal."""
    command = [sys.executable, "-m", "sandpool.cli.main", "controller", "--kubeconfig", str(kubeconfig)]
    options = ["--metrics-bind-address=0", "--health-probe-bind-address=0", "--log-format=text"]
    with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        process.terminate()
        assert process.wait(60) == 0
    assert "WARNING sandpool.controllers.leader: waiting: no answer from https://127.0.0.1:1: " in line


def test_controller_serves_the_embedded_api_and_stops_on_sigterm(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sandpool.cli.main", "controller"]
    with ServerProcess() as server:
        options = ["--kubeconfig", str(server.kubeconfig), "--metrics-bind-address=0", "--health-probe-bind-address=0"]
        component = Component("sandpool controller", [*command, *options], tmp_path / "log")
        component.start()
        component.wait_for("leading: ")
        assert component.end() == 0
    assert "released the lease default/a3317529.agent-sandbox.x-k8s.io" in component.tail()
