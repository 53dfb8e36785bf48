"""``sandpool router`` as a process of its own, next to an API server."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandpool import __version__
from sandpool.bench.child_process import Component, ReservedPort
from sandpool.bench.server_process import ServerProcess
from sandpool.router.tokens import TokenScope, TokenSigner
from tests.support.users import ADMIN

COMMAND = (sys.executable, "-m", "sandpool.cli.main")
SECRET = b"0123456789abcdef0123456789abcdef\n"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess() as server:
        yield server


class Routing:
    """A router that runs."""

    def __init__(self, process: Component, port: int, metrics: int, health: int) -> None:
        self.process = process
        self.port = port
        self.metrics = metrics
        self.health = health

    def get(self, path: str, port: int | None = None, **headers: str) -> tuple[int, str]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port or self.port}{path}",
            headers={name.replace("_", "-"): value for name, value in headers.items()},
        )
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


@contextmanager
def routing(server: ServerProcess, directory: Path, *options: str) -> Iterator[Routing]:
    ports = [ReservedPort() for _ in range(3)]
    numbers = [port.number for port in ports]
    for port in ports:
        port.close()  # the pages do not share theirs
    flags = ("--http-bind-address", "--metrics-bind-address", "--health-probe-bind-address")
    addresses = [f"{flag}=127.0.0.1:{number}" for flag, number in zip(flags, numbers, strict=True)]
    command = [*COMMAND, "router", "--kubeconfig", str(server.kubeconfig), *addresses, *options]
    process = Component("sandpool router", command, directory / "router.log")
    process.start()
    try:
        process.wait_for("routing to the sandboxes")
        yield Routing(process, *numbers)
    finally:
        process.stop()


def test_router_serves_health_and_metrics_and_stops(server: ServerProcess, tmp_path: Path) -> None:
    with routing(server, tmp_path, "--authz-mode=allow-all") as router:
        assert router.get("/healthz") == (200, '{"status":"ok"}')
        status, text = router.get("/", X_Sandbox_ID="none")
        assert (status, json.loads(text)["detail"]) == (404, "Sandbox none not found in namespace default.")
        assert router.get("/readyz", router.health)[0] == 200
        assert router.get("/healthz", router.health)[0] == 200
        metrics = router.get("/metrics", router.metrics)[1]
        assert "sandbox_router_requests_total{" in metrics
        assert f'git_version="{__version__}"' in metrics.partition("\nsandbox_router_build_info{")[2]
        assert router.process.end() == 0


def test_router_authenticates_with_the_api_server(server: ServerProcess, tmp_path: Path) -> None:
    with routing(server, tmp_path) as router:
        assert router.get("/", X_Sandbox_ID="none")[0] == 401
        assert router.get("/", X_Sandbox_ID="none", Authorization="Bearer wrong")[0] == 401
        assert router.get("/", X_Sandbox_ID="none", Authorization=f"Bearer {server.tokens[ADMIN]}")[0] == 404


def test_clients_need_a_token_by_default(server: ServerProcess, tmp_path: Path) -> None:
    with routing(server, tmp_path) as router:
        assert router.get("/", X_Sandbox_ID="box", X_Sandbox_Namespace="team")[0] == 401


def test_token_is_valid_for_one_sandbox(server: ServerProcess, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    made = subprocess.run(
        [*COMMAND, "token", "box", "-n", "team", "--secret-file", str(secret), "--valid-for=10m"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout.strip()
    expired = TokenSigner(SECRET).make(TokenScope("team", ("box",), 1))
    options = ("--authz-mode=scoped-token", f"--authz-scoped-token-secret-file={secret}")
    with routing(server, tmp_path, *options) as router:
        for token, namespace, expected in (
            (made, "team", 404),  # it may pass, and there is no such sandbox
            (made, "other", 403),
            (expired, "team", 401),
            ("", "team", 401),
        ):
            found, _ = router.get(
                "/", X_Sandbox_ID="box", X_Sandbox_Namespace=namespace, Authorization=f"Bearer {token}"
            )
            assert found == expected


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--authz-mode=scoped-token",), "--authz-mode=scoped-token and --authz-scoped-token-secret-file go together"),
        (("--https-bind-address=127.0.0.1:0",), "--https-bind-address needs --tls-cert-file and --tls-key-file"),
        (("--http-bind-address=nowhere",), "--http-bind-address: 'nowhere' is not an address"),
        (("--kubeconfig=/none",), "/none"),
    ],
)
def test_conflicting_options_are_rejected(server: ServerProcess, options: tuple[str, ...], complaint: str) -> None:
    command = [*COMMAND, "router", "--kubeconfig", str(server.kubeconfig), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert complaint in done.stderr
