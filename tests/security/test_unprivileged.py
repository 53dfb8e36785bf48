"""Sandboxes that somebody else than root makes hold what they can hold, and say what they cannot."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from sandpool.testing.escape.neighbourhood import Neighbourhood
from sandpool.testing.isolation import processes
from sandpool.testing.somebody import Nobody, Somebody, somebody
from sandpool.testing.watching import until

pytestmark = pytest.mark.isolation


@pytest.fixture
def user() -> Iterator[Somebody]:
    try:
        with somebody() as found:
            yield found
    except Nobody as why:
        pytest.skip(str(why))


async def run(user: Somebody, *arguments: str) -> Any:
    command = user.command("-m", "sandpool.testing.escape.unprivileged", *arguments)
    pipe, env = asyncio.subprocess.PIPE, {"PATH": os.environ["PATH"]}
    process = await asyncio.create_subprocess_exec(*command, cwd="/", stdout=pipe, stderr=pipe, env=env)
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return json.loads(output)


def of(uid: int) -> list[str]:
    return [name for owner, name in processes() if owner == uid]


async def test_it_holds_and_works(user: Somebody, neighbours: Neighbourhood) -> None:
    before = of(user.uid)
    found = await run(user, json.dumps(neighbours.facts))
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
