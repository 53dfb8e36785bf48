"""What a newcomer sees first has to work as it is shown."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.resources import files

import pytest
import yaml

from sandpool.cli.demo import AFTER, BEFORE, CLAIMS


def demo(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sandpool.cli.main", "demo"],
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on the path")
def test_every_step_does_what_it_says() -> None:
    done = demo(HOME="/nonexistent")
    assert done.returncode == 0, done.stdout + done.stderr
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


def test_without_kubectl_it_says_what_to_do() -> None:
    done = demo(PATH="/nonexistent", KUBEBUILDER_ASSETS="/nonexistent")
    assert done.returncode == 1
    assert done.stderr == "Error: kubectl is not installed; as root run: apt-get install kubernetes-client\n"


def test_the_manifest_is_in_the_package() -> None:
    text = (files("sandpool.cli") / "manifests" / "quickstart.yaml").read_text()
    assert [each["kind"] for each in yaml.safe_load_all(text)] == ["SandboxTemplate", "SandboxWarmPool", "SandboxClaim"]
