from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandpool.bench.child_process import Component, ComponentFailed, ReservedPort

ENDLESS = "import time\nprint('up', flush=True)\nwhile True: time.sleep(1)"
STUBBORN = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + ENDLESS


def component(tmp_path: Path, program: str) -> Component:
    return Component("test", [sys.executable, "-c", program], tmp_path / "log")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Component]:
    made = component(tmp_path, ENDLESS)
    made.start()
    made.wait_for("up")
    yield made
    made.kill()


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def state(pid: int) -> str:
    """R(unning), S(leeping), T(stopped) as the kernel has it."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_stop_ends_the_process(running: Component) -> None:
    pid = running.pid
    running.stop()
    assert gone(pid)
    assert not running.running
    running.stop()


def test_end_returns_the_exit_code(tmp_path: Path) -> None:
    made = component(tmp_path, "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n" + ENDLESS)
    made.start()
    made.wait_for("up")
    assert made.end() == 7
    assert not made.running


def test_end_raises_when_the_process_does_not_end_in_time(tmp_path: Path) -> None:
    made = component(tmp_path, STUBBORN)
    made.start()
    made.wait_for("up")
    with pytest.raises(ComponentFailed, match=r"(?s)test did not end within 0\.05 s.*up"):
        made.end(within=0.05)
    made.kill()


def test_wait_for_reads_only_new_output(tmp_path: Path) -> None:
    made = component(tmp_path, "print('going')")
    made.start()
    assert made.wait() == 0
    made.start()
    made.wait_for("going", since=1)
    with pytest.raises(ComponentFailed, match=r"(?s)did not say 'gone'.*going"):
        made.wait_for("gone")
    made.kill()


def test_kill_ends_the_process(running: Component) -> None:
    pid = running.pid
    running.kill()
    assert gone(pid)


def test_stop_kills_a_process_that_ignores_sigterm(tmp_path: Path) -> None:
    made = component(tmp_path, STUBBORN)
    made.start()
    made.wait_for("up")
    pid = made.pid
    made.stop(within=0.1)
    assert gone(pid)


def test_process_can_be_paused(running: Component) -> None:
    running.pause()
    assert state(running.pid) == "T"
    running.resume()
    assert state(running.pid) != "T"


def test_paused_process_can_be_stopped(running: Component) -> None:
    running.pause()
    pid = running.pid
    started = time.monotonic()
    running.stop(within=5)
    assert gone(pid)
    assert time.monotonic() - started < 5


def test_process_can_be_started_again(running: Component) -> None:
    first = running.pid
    running.kill()
    running.start()
    assert running.running
    assert running.pid != first
    with pytest.raises(RuntimeError, match=r"running already"):
        running.start()


def test_process_that_exits_by_itself_is_reported(tmp_path: Path) -> None:
    made = component(tmp_path, "print('last words')")
    made.start()
    deadline = time.monotonic() + 10
    while made.running:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert made.tail() == "last words"
    with pytest.raises(RuntimeError, match=r"is not running"):
        made.pause()
    made.stop()


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed")
def test_process_does_not_outlive_its_parent(tmp_path: Path) -> None:
    starter = f"""
import os, sys
from pathlib import Path
from sandpool.bench.child_process import Component
made = Component("test", [sys.executable, "-c", {ENDLESS!r}], Path({str(tmp_path / "log")!r}))
made.start()
while not made.tail(): pass
print(made.pid, flush=True)
os._exit(1)
"""
    done = subprocess.run([sys.executable, "-c", starter], stdout=subprocess.PIPE, text=True, check=False)
    deadline = time.monotonic() + 10
    while not gone(int(done.stdout)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_tail_returns_the_end_of_a_long_log(tmp_path: Path) -> None:
    made = component(tmp_path, "")
    assert made.tail() == ""
    made.log.write_text("".join(f"line {number}\n" for number in range(100_000)))
    assert made.tail(2) == "line 99998\nline 99999"


def test_reserved_port_can_be_bound_by_one_server_only() -> None:
    port = ReservedPort()
    with socket.socket() as taker, pytest.raises(OSError, match=r"in use"):
        taker.bind(("127.0.0.1", port.number))
    with socket.socket() as server, socket.socket() as caller:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind(("127.0.0.1", port.number))
        server.listen()
        caller.connect(("127.0.0.1", port.number))
    port.close()
