"""The SDK and sandboxes that speak the newer dialect: through a tunnel to the pod, or in its network."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest

from sandpool.bench.sdk_process import SdkProcess, Speaker
from tests.support import sdk_scripts

pytestmark = pytest.mark.isolation

TUNNEL = {"class": "SandboxdPodTunnelConnectionConfig"}
BY_SERVICE = {"class": "SandboxdInClusterConnectionConfig", "mode": "in-cluster-service"}
BY_ADDRESS = {"class": "SandboxdInClusterConnectionConfig", "mode": "in-cluster-pod-ip"}
NO_KUBECTL = pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="no kubectl: install the Debian package kubectl"
)
POOL = "daemon"


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(TUNNEL, id="tunnel", marks=NO_KUBECTL),
        pytest.param(BY_ADDRESS, id="address"),
    ],
)
def speak(either: SdkProcess, request: pytest.FixtureRequest) -> Speaker:
    return Speaker(either, request.param)


@pytest.mark.parametrize("script", sdk_scripts.EVERYWHERE, ids=lambda script: script.__name__)
def test_common_script_succeeds(speak: Speaker, script: Callable[..., Any]) -> None:
    speak(script, POOL)


@pytest.mark.parametrize("script", sdk_scripts.BRIEFLY, ids=lambda script: script.__name__)
def test_service_name_resolves(either: SdkProcess, script: Callable[..., Any]) -> None:
    Speaker(either, BY_SERVICE)(script, POOL)


def test_sandboxd_features_work(speak: Speaker) -> None:
    speak(sdk_scripts.does_what_only_the_daemon_can)


def test_hundred_megabytes_are_streamed(sdk_sync: SdkProcess) -> None:
    Speaker(sdk_sync, BY_ADDRESS)(sdk_scripts.streams, 100, POOL)
