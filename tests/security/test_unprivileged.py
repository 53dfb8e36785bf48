"""Sandboxes of an unprivileged user are confined as far as possible, and missing protection is reported."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandpool.testing.waiting import until
from tests.support.escape.neighbourhood import Neighbourhood
from tests.support.isolation import processes
from tests.support.other_user import NoOtherUser, OtherUser, other_user

pytestmark = pytest.mark.isolation

CHECKOUT = Path(__file__).parents[2]

# In a container where a command is a link to what its process was executed from.
CHANGE = """
import os
os.fchmod(os.open("/proc/self/exe", os.O_RDONLY), 0o701)
print("changed")
"""
TRY_TO_CHANGE = f"""
import asyncio, json, pathlib, sys
from tests.support.escape.unprivileged import Trial

async def main():
    trial = Trial(pathlib.Path(sys.argv[1]))
    await trial.network.start()
    try:
        container = await trial.start("sleep", "1000")
        await trial.execute(container, "ln", "-s", "/proc/self/exe", "/tmp/python")
        print(json.dumps(await trial.execute(container, "/tmp/python", "-c", {CHANGE!r})))
    finally:
        await trial.groups.group().remove()
        await trial.network.stop()
        trial.launcher.close()

asyncio.run(main())
"""


@pytest.fixture
def user() -> Iterator[OtherUser]:
    try:
        with other_user() as found:
            yield found
    except NoOtherUser as why:
        pytest.skip(str(why))


async def run(user: OtherUser, *arguments: str | Path, python: Path | None = None) -> Any:
    command = user.command(*arguments, python=python)
    pipe, env = asyncio.subprocess.PIPE, {"PATH": os.environ["PATH"], "PYTHONPATH": str(CHECKOUT)}
    process = await asyncio.create_subprocess_exec(*command, cwd="/", stdout=pipe, stderr=pipe, env=env)
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return json.loads(output)


def of(uid: int) -> list[str]:
    return [name for owner, name in processes() if owner == uid]


async def test_unprivileged_sandbox_is_confined_and_works(user: OtherUser, neighbours: Neighbourhood) -> None:
    before = of(user.uid)
    found = await run(user, "-m", "tests.support.escape.unprivileged", json.dumps(neighbours.facts))
    assert found["self-test"] is None
    for who in ("root", "user", "program"):
        assert len(found[who]) > 20
        assert {name: what for name, what in found[who].items() if what is not None} == {}
    assert os.listdir(neighbours.writable) == []
    assert found["semantics"] == {
        "exit code": 7,
        "signal": 9,
        "paused": [True, True],
        "resumed": 3,
        "killed": 137,
        "answer": "HTTP/1.0 200 OK",
        "adopted": "1000\n",
    }
    assert found["image"]["said"].startswith("ID=tiny\nchanged")
    assert found["image"]["left"] == ["ID=tiny\n", False]

    async def nothing_left() -> bool:
        return of(user.uid) == before

    await until(nothing_left)


async def test_sandbox_cannot_change_the_python_of_its_node(user: OtherUser) -> None:
    """A command is a copy of the launcher before it is executed, and Python may be this user's own."""
    python, trial = user.own_python(), user.place / "trial"
    trial.mkdir()
    os.chown(trial, user.uid, user.uid)
    before = python.stat()
    assert before.st_uid == user.uid
    assert await run(user, "-c", TRY_TO_CHANGE, trial, python=python) == [0, "changed\n"]
    after = python.stat()
    assert (after.st_mode, after.st_ctime_ns) == (before.st_mode, before.st_ctime_ns)
