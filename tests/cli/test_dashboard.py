"""The dashboard of ``sandpool up``, and ``sandpool dashboard``, as processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from sandpool.bench.server_process import ServerProcess
from sandpool.dashboard.access import login_url
from sandpool.engine.clock import SystemClock
from tests.cli.test_up import NODE, apply, claim, filled, reach, served
from tests.support.children import children_of

WITHIN = 30.0


class Visitor:
    """A browser without a page: it logs in and keeps its cookie and the secret of its session."""

    def __init__(self, url: str) -> None:
        self.base, _, code = url.partition("/login#")
        answer = self._request("POST", "/api/login", {"code": code})
        self.cookie = answer.headers["Set-Cookie"].partition(";")[0]
        page = self._request("GET", "/").read().decode()
        self.secret = page.partition("session&quot;: &quot;")[2].partition("&quot;")[0]

    def _request(self, method: str, path: str, content: Any = None) -> Any:
        headers = {"Origin": self.base, "Cookie": getattr(self, "cookie", "")}
        headers["X-Sandpool-Session"] = getattr(self, "secret", "")
        body = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(self.base + path, body, headers, method=method)
        return urllib.request.urlopen(request, timeout=WITHIN)

    def get(self, path: str) -> Any:
        return json.loads(self._request("GET", path).read())

    def post(self, path: str, content: Any) -> Any:
        return json.loads(self._request("POST", path, content).read())


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "sandpool.cli.main", *arguments]


def dashboards_of(parent: int) -> dict[str, int]:
    """The dashboards among the children of a process: command lines with their PIDs."""
    return children_of(parent, "sandpool.dashboard")


def test_the_first_browser_starts_the_dashboard_of_a_home(tmp_path: Path) -> None:
    options = (*NODE, "--audit-log", str(tmp_path / "audit.log"))
    with ServerProcess("up", options=options) as server:
        asyncio.run(stocked(server))
        assert not dashboards_of(server.process.pid)
        visitor = Visitor(server.dashboard)
        (started,) = dashboards_of(server.process.pid)
        token = server.kubeconfig.with_name("dashboard-token")
        assert token.stat().st_mode & 0o077 == 0
        assert token.read_text() not in started
        assert 'Claim "mine" is ready' in visitor.get("/api/why/claim/default/mine")["sentence"]
        done: list[tuple[str, str]] = []
        end = time.monotonic() + WITHIN
        while time.monotonic() < end:  # the audit log is written in the background
            trace = visitor.get("/api/trace/default/mine")
            done = [(step["verb"], step["about"]) for step in trace["steps"] if step["kind"] == "write"]
            if ("patch", "sandboxclaims/mine/status") in done:
                break
        assert ("create", "sandboxclaims/mine") in done
        assert ("patch", "sandboxclaims/mine/status") in done
        assert any(step["kind"] == "reconcile" for step in trace["steps"])
        with pytest.raises(urllib.error.HTTPError, match="401"):  # the code was used
            Visitor(server.dashboard)


def test_a_dashboard_that_is_killed_comes_back_and_trusts_no_code_from_before() -> None:
    with ServerProcess("up", options=NODE) as server:
        token = server.kubeconfig.with_name("dashboard-token").read_text()
        early = login_url(server.dashboard.partition("/login")[0], token, SystemClock())
        Visitor(server.dashboard)
        (pid,) = dashboards_of(server.process.pid).values()
        os.kill(pid, signal.SIGKILL)
        # The connection waits in the socket, which stays open, for the next process.
        with pytest.raises(urllib.error.HTTPError, match="401"):
            Visitor(early)
        Visitor(login_url(server.dashboard.partition("/login")[0], token, SystemClock()))


def test_the_command_finds_the_dashboard_of_the_home_and_serves_one_for_clusters(tmp_path: Path) -> None:
    home = tmp_path / "user"
    home.mkdir()
    environ = {**os.environ, "HOME": str(home), "XDG_DATA_HOME": str(home / "data"), "KUBECONFIG": ""}
    with ServerProcess("up", options=NODE, user_home=home) as server:
        del environ["XDG_DATA_HOME"]
        shown = subprocess.run(command("dashboard"), env=environ, capture_output=True, text=True, check=True)
        assert shown.stdout.startswith(server.dashboard.partition("#")[0])
        Visitor(shown.stdout.strip())
        environ["KUBECONFIG"] = str(server.kubeconfig)
        serve = command("dashboard", "--serve", "--bind-address", "127.0.0.1:0", "--read-only")
        with subprocess.Popen(serve, env=environ, stdout=subprocess.PIPE, text=True) as serving:
            assert serving.stdout is not None
            visitor = Visitor(serving.stdout.readline().strip())
            with pytest.raises(urllib.error.HTTPError, match="403"):
                visitor.post("/api/pools/default/python/scale", {"replicas": 1})
            assert serving.stdout.readline().startswith("token for further logins: ")
            serving.send_signal(signal.SIGINT)
            assert serving.wait(WITHIN) == 0


def test_a_home_without_a_dashboard_says_how_to_get_one(tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "XDG_DATA_HOME"} | {"HOME": str(tmp_path)}
    with ServerProcess("up", options=(*NODE, "--dashboard-bind-address", "0"), user_home=tmp_path):
        shown = subprocess.run(command("dashboard"), env=environ, capture_output=True, text=True, check=False)
        assert shown.returncode == 1
        assert "sandpool dashboard --serve" in shown.stderr


@pytest.mark.parametrize("up", [True, False])
def test_other_addresses_than_loopback_are_refused_without_tls(up: bool, tmp_path: Path) -> None:
    words = ["up", "--unlisted", "--no-node", "--data-dir", str(tmp_path), "--port", "0", "--router-bind-address", "0"]
    words += ["--metrics-bind-address", "0", "--dashboard-bind-address", "0.0.0.0:0"]
    if not up:
        config = tmp_path / "kubeconfig"
        config.write_text(
            json.dumps(
                {
                    "clusters": [{"name": "a", "cluster": {"server": "http://127.0.0.1:1"}}],
                    "contexts": [{"name": "a", "context": {"cluster": "a"}}],
                    "current-context": "a",
                }
            )
        )
        words = ["dashboard", "--kubeconfig", str(config), "--bind-address", "0.0.0.0:0"]
    shown = subprocess.run(command(*words), capture_output=True, text=True, check=False, timeout=60)
    assert shown.returncode == 1
    assert "--tls-cert-file" in shown.stderr
    assert "Traceback" not in shown.stderr


async def stocked(server: ServerProcess) -> None:
    """A pool, and a claim that has one of its sandboxes."""
    client = reach(server)
    await apply(client, 2)
    await filled(client, 2)
    await claim(client, "mine")
    await served(client, 1)
    await client.close()
