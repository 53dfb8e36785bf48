"""The SDK as it is by default: through a tunnel that a real kubectl makes to the router."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest

from sandpool.bench.sdk_process import SdkProcess, Speaker
from tests.support import sdk_scripts
from tests.support.private_network import PrivateHome

pytestmark = [
    pytest.mark.isolation,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl: install the Debian package kubectl"),
]


@pytest.fixture(scope="module")
def speak(sdk_sync: SdkProcess) -> Speaker:
    return Speaker(sdk_sync, {"class": "SandboxLocalTunnelConnectionConfig"})


@pytest.mark.parametrize("script", sdk_scripts.EVERYWHERE, ids=lambda script: script.__name__)
def test_common_script_succeeds(speak: Speaker, script: Callable[..., Any]) -> None:
    speak(script)


def test_large_files_are_streamed(speak: Speaker) -> None:
    speak(sdk_scripts.streams, 20)


def test_second_location_of_the_router_is_found(home: PrivateHome, speak: Speaker) -> None:
    def script(sdk: Any) -> None:
        config = sdk.models.SandboxLocalTunnelConnectionConfig(router_namespace="default")
        box = sdk.connected(config).create_sandbox("python")
        assert box.commands.run("echo there").stdout == "there\n"
        box.terminate()

    speak(script)


def test_namespace_without_a_router_is_reported(speak: Speaker) -> None:
    def script(sdk: Any) -> None:
        config = sdk.models.SandboxLocalTunnelConnectionConfig(router_namespace="kube-system")
        box = sdk.connected(config).create_sandbox("python")
        error = sdk.fails("SandboxPortForwardError", box.commands.run, "echo there")
        assert "not found in namespace 'kube-system'" in str(error), error
        box.terminate()

    speak(script)


def test_default_configuration_works(home: PrivateHome, speak: Speaker) -> None:
    def script(sdk: Any) -> None:
        with sdk.package.SandboxClient() as client:
            box = client.create_sandbox("python")
            assert box.commands.run("echo hello").stdout == "hello\n"
            box.terminate()

    speak(script)
