"""The SDK in the network of the pods: to the address of a pod, or to the name of its Service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sandpool.bench.sdk_process import SdkProcess, Speaker
from tests.support import sdk_scripts

pytestmark = pytest.mark.isolation


@pytest.fixture(scope="module")
def speak(either: SdkProcess) -> Speaker:
    return Speaker(either, {"class": "SandboxInClusterConnectionConfig"})


@pytest.mark.parametrize("script", sdk_scripts.EVERYWHERE, ids=lambda script: script.__name__)
def test_common_script_succeeds(speak: Speaker, script: Callable[..., Any]) -> None:
    speak(script)


def test_large_files_are_streamed(speak: Speaker) -> None:
    speak(sdk_scripts.streams, 20)


def test_service_name_resolves(speak: Speaker) -> None:
    def script(sdk: Any) -> None:
        import urllib.request

        box = sdk.client.create_sandbox("served")
        try:
            name = box.get_service_fqdn()
            assert name == f"{box.sandbox_id}.default.svc.cluster.local", name
            box.commands.run("true")  # it may be ready before its program listens
            answer = urllib.request.urlopen(f"http://{name}:8888/", timeout=20)
            assert b"Sandbox Runtime is active" in answer.read()
        finally:
            box.terminate()

    speak(script)
