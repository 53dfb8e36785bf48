"""The SDK with a Gateway, whose address is where the router listens on port 80."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from sandpool.bench.sdk_process import SdkProcess, Speaker
from tests.support import sdk_scripts
from tests.support.private_network import PrivateHome

pytestmark = pytest.mark.isolation

API = "gateway.networking.k8s.io/v1"
GATEWAY = {
    "apiVersion": API,
    "kind": "Gateway",
    "metadata": {"name": "external-http-gateway", "namespace": "default"},
    "spec": {
        "gatewayClassName": "sandpool",
        "listeners": [
            {"name": "http", "protocol": "HTTP", "port": 80, "allowedRoutes": {"namespaces": {"from": "All"}}}
        ],
    },
}
ROUTE = {
    "apiVersion": API,
    "kind": "HTTPRoute",
    "metadata": {"name": "sandbox-router-route", "namespace": "default"},
    "spec": {
        "parentRefs": [{"name": "external-http-gateway"}],
        "rules": [{"backendRefs": [{"name": "sandbox-router-svc", "port": 8080}]}],
    },
}


@pytest.fixture(scope="module")
def speak(home: PrivateHome, either: SdkProcess) -> Speaker:
    home.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all([GATEWAY, ROUTE]))
    config = {"class": "SandboxGatewayConnectionConfig", "gateway_name": "external-http-gateway"}
    return Speaker(either, config)


@pytest.mark.parametrize("script", sdk_scripts.BRIEFLY, ids=lambda script: script.__name__)
def test_common_script_succeeds(speak: Speaker, script: Callable[..., Any]) -> None:
    speak(script)


def test_kubectl_shows_the_gateway(home: PrivateHome, speak: Speaker) -> None:
    home.kubectl("wait", "gateway/external-http-gateway", "--for=condition=Programmed", "--timeout=30s")
    shown = home.kubectl("get", "gateways", "external-http-gateway", "--no-headers").split()
    assert shown[:4] == ["external-http-gateway", "sandpool", "127.0.0.77", "True"]
