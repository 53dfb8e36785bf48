"""The SDK with the address of the router: the mode to recommend."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandpool.bench.sdk_process import SdkProcess, Speaker, find_python
from tests.support import sdk_scripts
from tests.support.private_network import PrivateHome

README = Path(__file__).parents[2] / "README.md"
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


def test_the_program_in_the_readme_works_as_it_is(home: PrivateHome) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    (program,) = [block for block in blocks if "k8s_agent_sandbox" in block]
    assert home.router in program
    done = subprocess.run(
        [*home.prefix, find_python(), "-c", program],
        env={"PATH": os.environ["PATH"], "HOME": str(home.directory), "KUBECONFIG": str(home.server.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "42\n\n"), done.stderr
