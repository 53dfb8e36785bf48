"""All that the SDK can do, in each of its connection modes: what shorter tests show in one mode holds in the others.

Only when there is time: a claim is the same object in every mode, and what differs is the way to its sandbox.
"""

from __future__ import annotations

import shutil
from typing import Any, Final

import pytest
import yaml

from sandpool.bench.sdk_process import SdkProcess, Speaker
from tests.support import sdk_scripts
from tests.support.private_network import PrivateHome

pytestmark = [
    pytest.mark.isolation,
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl: install the Debian package kubectl"),
]

GATEWAY: Final = {
    "apiVersion": "gateway.networking.k8s.io/v1",
    "kind": "Gateway",
    "metadata": {"name": "every-mode", "namespace": "default"},
    "spec": {"gatewayClassName": "sandpool", "listeners": [{"name": "http", "protocol": "HTTP", "port": 80}]},
}
#: By mode: how the SDK is told, and whether its sandboxes speak the newer dialect.
MODES: Final[dict[str, tuple[dict[str, Any], bool]]] = {
    "direct": ({"class": "SandboxDirectConnectionConfig"}, False),
    "tunnel": ({"class": "SandboxLocalTunnelConnectionConfig"}, False),
    "gateway": ({"class": "SandboxGatewayConnectionConfig", "gateway_name": "every-mode"}, False),
    "in-cluster": ({"class": "SandboxInClusterConnectionConfig"}, False),
    "daemon-tunnel": ({"class": "SandboxdPodTunnelConnectionConfig"}, True),
    "daemon-service": ({"class": "SandboxdInClusterConnectionConfig", "mode": "in-cluster-service"}, True),
    "daemon-address": ({"class": "SandboxdInClusterConnectionConfig", "mode": "in-cluster-pod-ip"}, True),
}


@pytest.fixture(scope="module", params=list(MODES))
def mode(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def speak(home: PrivateHome, either: SdkProcess, mode: str) -> Speaker:
    if mode == "tunnel" and either.asynchronous:
        pytest.skip("the SDK has no asynchronous tunnel")
    config, _ = MODES[mode]
    if mode == "direct":
        config = {**config, "api_url": home.router}
    if mode == "gateway":
        home.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(GATEWAY))
    return Speaker(either, config)


@pytest.fixture(scope="module")
def daemon(mode: str) -> bool:
    return MODES[mode][1]


@pytest.mark.parametrize("script", sdk_scripts.EVERYWHERE, ids=lambda script: script.__name__)
def test_common_script_succeeds(speak: Speaker, daemon: bool, script: Any) -> None:
    speak(script, "daemon" if daemon else "python")


def test_hundred_megabytes_are_streamed(speak: Speaker, daemon: bool) -> None:
    speak(sdk_scripts.streams, 100, "daemon" if daemon else "python")


def test_existing_claim_is_used(speak: Speaker, mode: str, daemon: bool) -> None:
    name = f"every-{mode}-{'async' if speak.process.asynchronous else 'sync'}"
    speak(sdk_scripts.adopts_what_is_there, name, "daemon" if daemon else "python")


def test_env_of_the_client_is_set(speak: Speaker, daemon: bool) -> None:
    speak(sdk_scripts.brings_variables, "daemon" if daemon else "open")


def test_volumes_of_the_client_are_mounted(home: PrivateHome, speak: Speaker, mode: str, daemon: bool) -> None:
    if mode == "daemon-service":
        pytest.skip("its pool has no Service")
    claim = speak(sdk_scripts.brings_volumes, "daemon-disk" if daemon else "disk")
    home.kubectl("delete", "sandboxclaim", claim)


def test_errors_are_raised_at_once(speak: Speaker) -> None:
    speak(sdk_scripts.is_told_at_once)


def test_expired_sandbox_is_reported(speak: Speaker, mode: str) -> None:
    if mode not in ("direct", "tunnel", "gateway"):
        pytest.skip("without the router no response says that a sandbox is gone: the SDK retries for a while")
    speak(sdk_scripts.expires)
