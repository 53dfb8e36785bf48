"""The SDK with the address of the router: the mode to recommend."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from sandpool.bench.sdk_process import SdkProcess, Speaker, find_python
from tests.support import sdk_scripts
from tests.support.private_network import PrivateHome

pytestmark = pytest.mark.isolation


@pytest.fixture(scope="module")
def speak(home: PrivateHome, either: SdkProcess) -> Speaker:
    config = {"class": "SandboxDirectConnectionConfig", "api_url": home.router}
    return Speaker(either, config)


@pytest.mark.parametrize("script", sdk_scripts.EVERYWHERE, ids=lambda script: script.__name__)
def test_common_script_succeeds(speak: Speaker, script: Callable[..., Any]) -> None:
    speak(script)


def test_hundred_megabytes_are_streamed(speak: Speaker) -> None:
    speak(sdk_scripts.streams, 100)


def test_printed_example_runs(home: PrivateHome) -> None:
    said = home.server.process.tail(1000).splitlines()
    line = next(line for line in said if line.startswith("then, in Python"))
    done = subprocess.run(
        [*home.prefix, find_python(), "-c", line.partition(": ")[2]],
        env={"PATH": os.environ["PATH"], "HOME": str(home.directory), "KUBECONFIG": str(home.server.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "hello\n\n"), done.stderr
