"""What a newcomer sees first has to work as it is shown."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.resources import files

import pytest
import yaml

from sandpool.cli.demo import AFTER, BEFORE, CLAIMS


def demo(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*arguments, sys.executable, "-m", "sandpool.cli.main", "demo"],
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


# In a network that ends at its door: as root the demonstration runs real sandboxes.
ALONE = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$0" "$@"')


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on the path")
def test_every_step_does_what_it_says() -> None:
    is_root = os.geteuid() == 0
    done = demo(*(ALONE if is_root else ()), HOME="/nonexistent")
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("Sandboxes are real" if is_root else "Sandboxes are simulated") in done.stdout
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


def test_without_kubectl_it_says_what_to_do() -> None:
    done = demo(PATH="/nonexistent", KUBEBUILDER_ASSETS="/nonexistent")
    assert done.returncode == 1
    assert done.stderr == "Error: kubectl is not installed; as root run: apt-get install kubernetes-client\n"


def test_the_manifest_is_in_the_package() -> None:
    text = (files("sandpool.cli") / "manifests" / "quickstart.yaml").read_text()
    assert [each["kind"] for each in yaml.safe_load_all(text)] == ["SandboxTemplate", "SandboxWarmPool", "SandboxClaim"]
