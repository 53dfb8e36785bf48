"""A router that lets only those pass who hold a token for the sandbox, and the SDK with such a token."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandpool.bench.child_process import Component
from sandpool.bench.sdk_process import SdkProcess, Speaker
from sandpool.router.tokens import TokenScope, TokenSigner
from tests.support.private_network import PrivateHome

pytestmark = pytest.mark.isolation

SECRET = b"0123456789abcdef0123456789abcdef"
FAR = 1 << 40
URL = "http://127.0.0.1:8099"


@pytest.fixture(scope="module")
def guarded(home: PrivateHome, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """``sandpool router`` beside the home, as on a cluster: it connects to pods by their addresses."""
    directory: Path = tmp_path_factory.mktemp("router")
    (directory / "secret").write_bytes(SECRET)
    command = [
        *(*home.prefix, sys.executable, "-m", "sandpool.cli.main", "router"),
        *("--kubeconfig", str(home.server.kubeconfig), "--http-bind-address=127.0.0.1:8099"),
        *("--metrics-bind-address=0", "--health-probe-bind-address=0", "--authz-mode=scoped-token"),
        f"--authz-scoped-token-secret-file={directory / 'secret'}",
    ]
    process = Component("sandpool router", command, directory / "log")
    process.start()
    process.wait_for("routing to the sandboxes")
    yield
    assert process.end() == 0


def test_token_opens_only_its_own_sandbox(home: PrivateHome, guarded: None, either: SdkProcess) -> None:
    def begin(sdk: Any) -> list[str]:
        sdk.boxes = [sdk.client.create_sandbox("python") for _ in range(2)]
        return [box.sandbox_id for box in sdk.boxes]

    def use(sdk: Any, url: str, headers: dict[str, str], claim: int) -> list[Any]:
        config = sdk.models.SandboxDirectConnectionConfig(api_url=url, extra_headers=headers)
        box = sdk.connected(config).get_sandbox(sdk.boxes[claim].claim_name)
        try:
            return [200, box.commands.run("echo inside").stdout]
        except sdk.package.SandboxRequestError as error:
            return [error.status_code, error.response.json()["detail"]]
        finally:
            box.close_connection()

    def end(sdk: Any) -> None:
        for box in sdk.boxes:
            box.terminate()

    speak = Speaker(either, {"class": "SandboxDirectConnectionConfig", "api_url": home.router})
    mine, _ = speak(begin)
    token = TokenSigner(SECRET).make(TokenScope("default", (mine,), FAR))
    old = TokenSigner(SECRET).make(TokenScope("default", (mine,), 1))
    assert speak(use, URL, {"Authorization": f"Bearer {token}"}, 0) == [200, "inside\n"]
    assert speak(use, URL, {"Authorization": f"Bearer {token}"}, 1) == [403, "The token is for another sandbox."]
    for headers in ({}, {"Authorization": f"Bearer {old}"}, {"Authorization": "Bearer nonsense"}):
        assert speak(use, URL, headers, 0) == [401, "The token is missing, wrong or expired."]
    speak(end)
