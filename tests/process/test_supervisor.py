"""The supervisor, with children that do what a test tells them."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from sandpool.engine.clock import SystemClock
from sandpool.process.control import ControlSender
from sandpool.process.supervisor import LogRelay, ProcessFailed, SupervisedProcess, log_line
from sandpool.testing.waiting import until

CHILD = (str(Path(__file__).parents[1] / "support" / "supervised_child.py"),)


def supervised() -> SupervisedProcess:
    return SupervisedProcess("example", CHILD, SystemClock(), Random(0))


async def set_up(control: ControlSender) -> None:
    await control.send("become ready")


def runs(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def environment(pid: int) -> set[bytes]:
    """The names of the variables that a process was started with."""
    return {each.partition(b"=")[0] for each in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if each}


def open_files(pid: int) -> list[str]:
    targets = [os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()]
    return [each for each in targets if each.startswith("/") and each != "/dev/null"]


async def gone(pid: int) -> None:
    async def ended() -> bool:
        return not runs(pid)

    await until(ended)


async def test_child_that_dies_is_replaced_and_set_up_again(caplog: pytest.LogCaptureFixture) -> None:
    process = supervised()
    set_ups = 0

    async def count(control: ControlSender) -> None:
        nonlocal set_ups
        set_ups += 1
        await set_up(control)

    await process.start(count)
    try:
        first = process.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)

        async def replaced() -> bool:
            return process.pid not in (None, first) and process.restarts == 1

        await until(replaced)
        await asyncio.wait_for(echo(process, "again"), 30)
        assert set_ups == 2
        (line,) = [record.getMessage() for record in caplog.records]
        assert line.startswith("the example process ended (signal SIGKILL); restarting it in 0.")
    finally:
        await process.stop(0)


async def echo(process: SupervisedProcess, text: str) -> str:
    """Have the child send a text back through a descriptor, once it serves."""
    while True:
        ours, theirs = socket.socketpair()
        with ours:
            ours.setblocking(False)
            with theirs:
                try:
                    await process.send("echo", [theirs.fileno()], text=text)
                except ConnectionError:
                    await asyncio.sleep(0.05)
                    continue
            data = await asyncio.get_running_loop().sock_recv(ours, 1000)
        if data:
            return data.decode()


async def test_messages_of_any_length_arrive_in_order() -> None:
    process = supervised()
    await process.start(set_up)
    try:
        texts = ["a", "b" * 100_000, "c"]
        assert [await echo(process, text) for text in texts] == [f"{len(text)} {text[0]}" for text in texts]
    finally:
        await process.stop(0)


async def test_child_that_ends_before_it_is_ready_fails_the_start() -> None:
    process = supervised()

    async def end(control: ControlSender) -> None:
        await control.send("end")

    with pytest.raises(ProcessFailed, match="the example process could not start: it ended"):
        await process.start(end)
    assert process.pid is None


async def test_child_that_says_anything_else_is_killed() -> None:
    process = supervised()
    await process.start(set_up)
    try:
        first = process.pid
        assert first is not None
        await process.send("talk")
        await gone(first)
    finally:
        await process.stop(0)


async def test_stop_waits_for_a_child_that_ends_and_kills_one_that_does_not() -> None:
    for operation in ("end", "ignore"):
        process = supervised()
        await process.start(set_up)
        pid = process.pid
        assert pid is not None
        await process.send(operation)
        await process.stop(30 if operation == "end" else 0.05)
        assert not runs(pid)
        assert process.restarts == 0


async def test_child_has_its_own_session_and_no_environment() -> None:
    process = supervised()
    await process.start(set_up)
    try:
        pid = process.pid
        assert pid is not None
        assert os.getsid(pid) == pid
        assert environment(pid) <= {b"TZ", b"LC_CTYPE"}
        assert open_files(pid) == []
    finally:
        await process.stop(0)


async def test_log_of_the_child_is_forwarded(capfd: pytest.CaptureFixture[str]) -> None:
    process = supervised()
    await process.start(set_up)
    await process.send("log", text="one \x1b[31mred\nlast")
    await process.send("end")
    await process.stop(30)
    assert capfd.readouterr().err.splitlines() == ["one \\x1b[31mred", "last"]


async def test_log_of_a_child_that_writes_too_much_is_cut(capfd: pytest.CaptureFixture[str]) -> None:
    reader, writer = os.pipe()
    relay = LogRelay(reader)
    for _ in range(100):
        os.write(writer, (b"x" * 1000 + b"\n") * 50)
        relay.copy()
    os.close(writer)
    relay.close()
    written = capfd.readouterr().err
    assert 1_000_000 < len(written) < 1_200_000, "of five million"


def test_long_lines_of_a_log_are_cut() -> None:
    assert len(log_line(b"x" * 100_000)) == 8192
    assert log_line("für\tdich\x00\x9b".encode()) == "für\tdich\\x00\\x9b"


def test_child_ends_with_its_parent() -> None:
    """The parent is killed, and has no chance to end its child."""
    code = f"""
import asyncio, os, signal
from random import Random
from sandpool.engine.clock import SystemClock
from sandpool.process.supervisor import SupervisedProcess

async def set_up(control):
    await control.send("become ready")

async def main():
    process = SupervisedProcess("example", {CHILD!r}, SystemClock(), Random(0))
    await process.start(set_up)
    print(process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    asyncio.run(gone(int(done.stdout)))
