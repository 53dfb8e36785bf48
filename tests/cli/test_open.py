"""``sandpool open``: a local URL for a server in a sandbox."""

from __future__ import annotations

import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from tests.support.playground import WITHIN, Playground

pytestmark = pytest.mark.isolation


@pytest.fixture(scope="module")
def box(home: Playground) -> Iterator[str]:
    name = home.works("claim").strip()
    home.works("exec", name, "--", "sh", "-c", "mkdir /tmp/www; echo hello > /tmp/www/page")
    yield name
    home.works("release", name)


def test_a_server_in_the_sandbox_is_reached_until_ctrl_c(home: Playground, box: str) -> None:
    serve = "cd /tmp/www && (setsid python3 -m http.server 8123 >/dev/null 2>&1 &)"
    home.works("exec", box, "--", "sh", "-c", serve)
    listening = "import socket,time\nwhile socket.socket().connect_ex(('127.0.0.1', 8123)): time.sleep(0.05)"
    home.works("exec", box, "--", "python3", "-c", listening)
    command = home.command("open", box, "8123")
    with subprocess.Popen(
        command, env=home.environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        url = process.stdout.readline().decode().strip()
        for _ in range(3):
            with urllib.request.urlopen(f"{url}/page", timeout=WITHIN) as response:
                assert response.read() == b"hello\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(WITHIN) == 0
        assert process.stderr.read() == b""


def test_a_port_without_a_server_is_said(home: Playground, box: str) -> None:
    command = home.command("open", box, "8124")
    with subprocess.Popen(
        command, env=home.environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        url = process.stdout.readline().decode().strip()
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            urllib.request.urlopen(url, timeout=WITHIN)
        assert b"8124: nothing listens on it" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(WITHIN) == 0


def test_mistakes_are_one_line_with_advice(home: Playground, box: str) -> None:
    assert "is not in the range" in home.fails("open", box, "99999", code=2)
    assert "there is no claim or sandbox" in home.fails("open", "missing", "80")
