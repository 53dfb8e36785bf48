"""Acknowledged writes survive SIGKILL at any instant."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from sandpool.server.store.journal import Journal
from sandpool.server.store.store import Store

WRITER = Path(__file__).with_name("relentless_writer.py")


def run_and_kill(directory: Path, start: int, lines: int) -> dict[str, tuple[int, str]]:
    """Let the writer work until it has acknowledged so many writes, kill it, and return the last of each key."""
    acknowledged: dict[str, tuple[int, str]] = {}
    with subprocess.Popen([sys.executable, str(WRITER), str(directory), str(start)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(lines):
            line = process.stdout.readline()
            assert line, "the writer died by itself"
            name, sequence, what = line.decode().split()
            acknowledged[name] = (int(sequence), what)
        process.kill()
        # What it managed to report before it died was acknowledged too. A torn last line was not.
        for line in process.stdout.read().splitlines(keepends=True):
            if line.endswith(b"\n"):
                name, sequence, what = line.decode().split()
                acknowledged[name] = (int(sequence), what)
    return acknowledged


async def check(directory: Path, acknowledged: dict[str, tuple[int, str]]) -> int:
    """Every acknowledged write is there, or something newer is. Returns the highest sequence number stored."""
    store = Store(Journal(directory))
    try:
        stored: dict[str, int] = {entry.key[1]: entry.decode()["sequence"] for entry in store.scan("things")}
    finally:
        await store.close()
    for name, (sequence, what) in acknowledged.items():
        if name in stored:
            assert stored[name] > sequence or (stored[name] == sequence and what == "put"), name
        else:
            # It was removed, or an unacknowledged removal came right after: removals have every fifth number.
            assert what == "remove" or (sequence + 1) % 5 == 0, (name, sequence)
    return max([*stored.values(), *(sequence for sequence, _ in acknowledged.values())])


async def kill_repeatedly(directory: Path, times: int, seed: int) -> None:
    chance = random.Random(seed)
    last: dict[str, tuple[int, str]] = {}
    highest = 0
    for _ in range(times):
        # Round up, so that the pattern of removals starts anew with every run.
        start = highest - highest % 5 + 5
        last |= run_and_kill(directory, start, chance.randrange(1, 400))
        highest = await check(directory, last)


@pytest.mark.durability
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
async def test_nothing_acknowledged_is_lost_to_sigkill(tmp_path: Path, seed: int) -> None:
    await kill_repeatedly(tmp_path, times=50, seed=seed)


@pytest.mark.long
@pytest.mark.durability
async def test_nothing_acknowledged_is_lost_to_hundreds_of_sigkills(tmp_path: Path) -> None:
    await kill_repeatedly(tmp_path, times=400, seed=5)
