from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sandpool.sdk import process
from sandpool.sdk.errors import SandpoolError
from sandpool.sdk.process import AsyncProcesses, ProcessLost
from sandpool.sdk.results import Output
from sandpool.service.commands import Commands
from sandpool.service.sandboxes import Sandbox
from tests.support.fake_pod_client import FakePodClient

BOX = Sandbox.from_object({"metadata": {"name": "box", "namespace": "space"}, "spec": {}})


@pytest_asyncio.fixture
async def processes(
    pods: FakePodClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[AsyncProcesses]:
    directory = str(tmp_path / "processes")
    monkeypatch.setattr(process, "_LIST", process._LIST.replace(process._DIRECTORY, directory))
    monkeypatch.setattr(process, "_DIRECTORY", directory)
    processes = AsyncProcesses(Commands(pods), BOX)
    yield processes
    for left in await processes.list():
        await left.kill()
        await left.end_input()


async def test_background_process_has_output_exit_code_and_environment(
    processes: AsyncProcesses, directory: Path
) -> None:
    (directory / "sub").mkdir()
    started = await processes.start('pwd; echo "$GREETING" >&2; exit 3', env={"GREETING": "it's me"}, cwd="sub")
    pieces: list[Output] = []
    done = await started.wait(stream=pieces.append)
    assert (done.exit_code, done.stdout, done.stderr) == (3, f"{directory}/sub\n", "it's me\n")
    assert b"".join(piece.data for piece in pieces if piece.stream == "stdout").decode() == done.stdout
    assert not await started.running()


async def test_background_process_is_found_again_by_its_id(processes: AsyncProcesses, pods: FakePodClient) -> None:
    await processes.start(["cat"], id="echo")
    again = AsyncProcesses(Commands(pods), BOX)
    (found,) = await again.list()
    assert found.id == "echo"
    await found.send("one\n")
    await found.send(b"two\n")
    assert await found.running()
    await found.end_input()
    done = await again.get("echo").wait()
    assert (done.exit_code, done.stdout) == (0, "one\ntwo\n")
    with pytest.raises(SandpoolError, match="has ended"):
        await found.send("more")


@pytest.mark.parametrize("name", ["KILL", "TERM", "INT"])
async def test_signals_reach_the_process_and_its_children(processes: AsyncProcesses, name: str) -> None:
    started = await processes.start("sleep 1000 & echo $!; wait")
    child: list[int] = []
    while not child:
        child = [int(line) for line in (await started.logs()).stdout.split()]
    await started.kill(name)
    done = await started.wait()
    assert done.exit_code == 128 + signal.Signals[f"SIG{name}"]
    await started.kill(name)


async def test_wait_that_times_out_leaves_the_process_running(processes: AsyncProcesses) -> None:
    started = await processes.start(["cat"])
    waited = await started.wait(timeout=0)
    assert (waited.timed_out, waited.exit_code) == (True, -1)
    assert await started.running()


async def test_output_beyond_the_limit_is_dropped_and_said(processes: AsyncProcesses) -> None:
    started = await processes.start("printf %01000d 0")
    done = await started.wait(max_output=100)
    assert (len(done.stdout), done.truncated, done.stdout_size, done.stderr_size) == (100, True, 1000, 0)


async def test_process_that_left_no_exit_code_is_lost(processes: AsyncProcesses, tmp_path: Path) -> None:
    started = await processes.start(["cat"])
    supervisor = tmp_path / "processes" / started.id / "supervisor"
    os.kill(int(supervisor.read_text()), signal.SIGKILL)
    with pytest.raises(ProcessLost):
        await started.wait()


async def test_unknown_used_and_impossible_ids_are_refused(processes: AsyncProcesses) -> None:
    await processes.start("true", id="same")
    with pytest.raises(SandpoolError, match='already has a process "same"'):
        await processes.start("true", id="same")
    with pytest.raises(SandpoolError, match='no process "other"'):
        await processes.get("other").wait()
    for wrong in ("", "../x", "a/b", "-x", "x" * 64):
        with pytest.raises(ValueError, match="no ID of a process"):
            processes.get(wrong)
    with pytest.raises(ValueError, match="no signal name"):
        await processes.get("same").kill("9; reboot")


async def test_command_that_does_not_exist_ends_with_127(processes: AsyncProcesses) -> None:
    done = await (await processes.start(["no-such-command"])).wait()
    assert done.exit_code in (1, 127)
    assert "no-such-command" in done.stderr
