"""The home in the background: started once, by whichever program needs it first."""

from __future__ import annotations

import os
import signal
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandpool.api.kinds import NAMESPACE
from sandpool.home import start
from sandpool.home.discovery import Home, running
from sandpool.home.start import StartFailed, ensure_running
from sandpool.kube.client import Client
from sandpool.kube.http import HttpTransport
from sandpool.kube.kubeconfig import load

FREE = ("--port", "0", "--router-bind-address", "127.0.0.1:0", "--metrics-bind-address", "0")


@pytest.fixture
def environ(tmp_path: Path) -> Iterator[dict[str, str]]:
    environ = {**os.environ, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "data")}
    before = len(start._started)
    yield environ
    for process in start._started[before:]:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(30.0)


async def test_two_programs_at_once_start_one_home_that_outlives_them(environ: dict[str, str]) -> None:
    said: list[str] = []
    homes: list[Home] = []

    def program() -> None:
        homes.append(ensure_running(said.append, options=(*FREE, "--simulated-nodes", "1"), environ=environ))

    programs = [threading.Thread(target=program) for _ in range(2)]
    for each in programs:
        each.start()
    for each in programs:
        each.join()
    home = homes[0]
    assert homes == [home, home] == [running(environ)] * 2
    assert len([line for line in said if line.startswith("starting the local home in the background")]) == 1
    assert os.getsid(home.pid) == home.pid != os.getsid(0)
    assert os.readlink(f"/proc/{home.pid}/cwd") == "/"
    assert home.log == home.data_dir / "up.log"
    assert stat.S_IMODE(home.log.stat().st_mode) == 0o600
    client = Client(HttpTransport(load(home.kubeconfig)))
    assert (await client.list(NAMESPACE))["items"]
    await client.close()


def test_a_home_that_cannot_start_is_explained_with_its_last_words(environ: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "data" / "sandpool" / "up.log"
    log.parent.mkdir(parents=True)
    log.write_text("of an earlier home\n")
    with pytest.raises(StartFailed) as failed:
        ensure_running(lambda text: None, options=("--port", "nonsense"), environ=environ)
    first, *last = str(failed.value).splitlines()
    assert first == f"the local home ended with status 2; the end of {log}:"
    assert last[-1].startswith("Error: Invalid value for '--port': 'nonsense'")
    assert "of an earlier home" not in last


def test_a_data_directory_that_cannot_be_made(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with pytest.raises(StartFailed, match="cannot use the data directory"):
        ensure_running(lambda text: None, environ=environ)


def test_a_large_log_is_set_aside(environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "_LOG_BYTES", 10)
    log = tmp_path / "data" / "sandpool" / "up.log"
    log.parent.mkdir(parents=True)
    log.write_text("of an earlier home\n")
    with pytest.raises(StartFailed):
        ensure_running(lambda text: None, options=("--port", "nonsense"), environ=environ)
    assert log.with_name("up.log.1").read_text() == "of an earlier home\n"
    assert "nonsense" in log.read_text()
