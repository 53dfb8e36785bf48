"""The first signal stops a command gracefully, the second at once."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import pytest

from sandpool.cli.foreground import until

PROGRAM = """
import asyncio
from sandpool.cli import foreground

async def work(stopping):
    print("up", flush=True)
    await stopping.wait()
    print("stopping", flush=True)
    await {last}

foreground.run(work)
"""


def start(last: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(last=last)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_stops_gracefully(number: signal.Signals) -> None:
    with start("asyncio.sleep(0)") as process:
        assert said(process) == "up\n"
        process.send_signal(number)
        assert said(process) == "stopping\n"
        assert process.wait(30) == 0


def test_second_signal_stops_at_once() -> None:
    with start("asyncio.sleep(600)") as process:
        assert said(process) == "up\n"
        process.send_signal(signal.SIGINT)
        assert said(process) == "stopping\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130


def test_open_file_limit_is_raised_to_the_hard_limit() -> None:
    work = "import resource; print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    program = PROGRAM.replace('print("up", flush=True)', work).replace("await stopping.wait()", "")
    limited = ["sh", "-c", 'ulimit -n 512 && ulimit -Sn 64 && exec "$0" "$@"']
    command = [*limited, sys.executable, "-c", program.format(last="asyncio.sleep(0)")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "512 512"


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


async def fail() -> None:
    raise LookupError("broken")


async def test_until_returns_true_when_stopped() -> None:
    stopping = asyncio.Event()
    stopping.set()
    assert await until(stopping, forever())


async def test_until_returns_false_when_a_task_ends() -> None:
    assert not await until(asyncio.Event(), forever(), asyncio.sleep(0))


async def test_until_raises_when_a_task_fails() -> None:
    with pytest.raises(LookupError, match="broken"):
        await until(asyncio.Event(), forever(), fail())
