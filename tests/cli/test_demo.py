"""The demo works as the README shows it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest
import yaml

from sandpool.api.quantity import parse
from sandpool.bench.sdk_process import MissingSdk, find_python
from sandpool.cli.demo import AFTER, BEFORE, CLAIMS
from sandpool.cli.demo_sdk import NOTE, PUBLISHED, comparison


def demo(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*arguments, sys.executable, "-m", "sandpool.cli.main", "demo"],
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def sdk() -> Path | None:
    """Where it is installed."""
    try:
        return find_python().parents[1]
    except MissingSdk:
        return None


SDK = sdk()
# In a network namespace without a route out: as root the demonstration runs real sandboxes.
ALONE = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$0" "$@"')


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on the path")
def test_demo_shows_every_step() -> None:
    is_root = os.geteuid() == 0
    done = demo(*(ALONE if is_root else ()), HOME="/nonexistent", SANDPOOL_CACHE=str(SDK.parent) if SDK else "")
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("Sandboxes are real" if is_root else "Sandboxes are simulated") in done.stdout
    if is_root and SDK is None:
        assert "Python code in the sandboxes is left out: the SDK is not installed: run dev/sdk" in done.stdout
    elif is_root:
        assert re.search(rf"^500500 python-.*\n.* {CLAIMS + 1} different sandboxes$", done.stdout, re.M | re.S)
        assert re.search(r"^\| here +\| \d+ ms +\| \d+ ms +\|$", done.stdout, re.M)
        for each in PUBLISHED:
            assert f"| published: {each.service}" in done.stdout
        assert NOTE in done.stdout
    if is_root:
        assert "OSError: " in done.stdout.split("and does not reach it.")[1].split("# ")[0]
    for step in (*BEFORE, *AFTER):
        assert f"# {step.text}" in done.stdout
    for line in (
        "sandboxwarmpool.extensions.agents.x-k8s.io/python created",
        "sandboxclaim.extensions.agents.x-k8s.io/my-claim condition met",
        "sandboxwarmpool.extensions.agents.x-k8s.io/python scaled",
        "spec.replicas in body should be greater than or equal to 0",
        'sandboxtemplate.extensions.agents.x-k8s.io "python" deleted',
    ):
        assert line in done.stdout
    assert re.search(
        rf"\| {CLAIMS} +\| [0-9.]+ +\| [0-9.]+ +\| [0-9.]+ +\| [0-9.]+ +\| {CLAIMS} +\| 0 +\|", done.stdout
    )
    assert done.stdout.endswith("The server has stopped and its directory is gone.\n")


def test_demo_without_kubectl_prints_what_to_install() -> None:
    done = demo(PATH="/nonexistent", KUBEBUILDER_ASSETS="/nonexistent")
    assert done.returncode == 1
    assert done.stderr == "Error: kubectl is not installed; as root run: apt-get install kubernetes-client\n"


def test_quickstart_manifest_is_in_the_package() -> None:
    text = (files("sandpool.cli") / "manifests" / "quickstart.yaml").read_text()
    assert [each["kind"] for each in yaml.safe_load_all(text)] == ["SandboxTemplate", "SandboxWarmPool", "SandboxClaim"]


def test_the_shipped_template_reserves_little_and_allows_much() -> None:
    """A limit without a request is reserved in full, as in Kubernetes: a pool would not fit on a small machine."""
    text = (files("sandpool.cli") / "manifests" / "quickstart.yaml").read_text()
    template = next(yaml.safe_load_all(text))
    (container,) = template["spec"]["podTemplate"]["spec"]["containers"]
    limits, requests = container["resources"]["limits"], container["resources"]["requests"]
    assert requests.keys() == limits.keys() == {"cpu", "memory", "ephemeral-storage"}
    pool = {"cpu": "1", "memory": "4Gi", "ephemeral-storage": "2Gi"}  # of a hundred, on one core
    for name, amount in requests.items():
        assert 100 * parse(amount).billionths <= parse(pool[name]).billionths, name
    assert parse(limits["memory"]).billionths >= parse("1Gi").billionths
    assert parse(limits["ephemeral-storage"]).billionths >= parse("4Gi").billionths


def test_comparison_has_published_figures_with_their_source() -> None:
    shown = comparison([0.010, 0.020, 0.030], [0.5] * 50).splitlines()
    assert shown[0].split("|")[2:4] == [" 3 one after the other ", " 50 at once "]
    assert shown[2].split() == ["|", "here", "|", "20", "ms", "|", "500", "ms", "|"]
    assert all(line.startswith("| published: ") for line in shown[3:6])
    assert "third parties" in shown[6]
